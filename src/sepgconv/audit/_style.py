"""How a page looks: in light and dark, wide and narrow."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2127; --soft: #5b6570; --ground: #ffffff; --card: #f4f6f8; --rule: #d9dee4;
  --good: #157a4f; --bad: #b3261e; --line: #2463b4; --grey: #98a2ad; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e9ed; --soft: #a2acb7; --ground: #14171b; --card: #1e2329; --rule: #353c45;
    --good: #5cc492; --bad: #ff8b80; --line: #7fb2f5; --grey: #6d7782; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.2rem 1rem 4rem; }
h1 { font-size: 1.1rem; font-weight: 600; color: var(--soft); margin: 0 0 .4rem; overflow-wrap: anywhere; }
h2 { font-size: 1.15rem; margin: 2.6rem 0 .3rem; }
p { margin: .3rem 0 .9rem; max-width: 46rem; }
p.first { font-size: 1.45rem; line-height: 1.35; max-width: 44rem; margin: 0 0 1rem; }
.soft, figcaption { color: var(--soft); font-size: .88rem; }
.good { color: var(--good); } .bad { color: var(--bad); }
.strip { display: grid; grid-template-columns: repeat(auto-fit, minmax(5.6rem, 1fr)); gap: .6rem; }
.strip figure, .pairs figure { margin: 0; background: var(--card); border-radius: .5rem;
  padding: .5rem; text-align: center; }
.strip img, .pairs img { width: 100%; max-width: 8rem; image-rendering: pixelated; border-radius: .25rem;
  display: block; margin: 0 auto; }
.strip b { display: block; overflow-wrap: anywhere; }
.strip figure.other { outline: 2px solid var(--bad); }
.pairs { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .8rem; }
.pairs div { display: grid; grid-template-columns: 1fr 1fr; gap: .5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: .93rem; }
th, td { text-align: right; padding: .3rem .5rem; border-bottom: 1px solid var(--rule); white-space: nowrap; }
th { color: var(--soft); font-weight: 500; white-space: normal; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; white-space: normal; }
tr.group td { font-weight: 600; padding-top: 1rem; }
tr.lost td { color: var(--bad); font-weight: 600; }
td.bar { width: 22%; min-width: 5rem; }
td.bar div { position: relative; }
td.bar u { position: absolute; top: -.15rem; width: 2px; height: 1rem; background: var(--ink); }
td.bar i { display: block; height: .7rem; border-radius: .2rem; background: var(--line); }
tr.lost td.bar i, td.bar i.over { background: var(--bad); }
svg { width: 100%; max-width: 38rem; height: auto; display: block; }
svg text { fill: var(--soft); font: 13px system-ui, sans-serif; }
svg .grid { stroke: var(--rule); } svg .line { fill: none; stroke: var(--line); stroke-width: 2.5; }
svg .dot { fill: var(--line); }
details { margin-top: 1.5rem; } summary { cursor: pointer; color: var(--soft); }
@media (max-width: 34rem) {
  p.first { font-size: 1.2rem; } table { font-size: .82rem; } th, td { padding: .25rem .3rem; }
  .narrow { display: none; } svg text { font-size: 20px; } }
"""
