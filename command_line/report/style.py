"""The style sheet of a report, and the script that searches and sorts its tables."""

STYLE = """
:root{--page:#f6f7f9;--card:#fff;--ink:#1c2330;--soft:#5d6675;--line:#e2e6ec;--track:#eef1f5;--bad:#b3261e;--good:#14734a;
--c0:#2a78d6;--c1:#1baf7a;--c2:#eda100;--c3:#8a4fd3;--others:#9aa3b0}
@media(prefers-color-scheme:dark){:root{--page:#12151b;--card:#1b2029;--ink:#e7eaf0;--soft:#9aa4b4;--line:#2d3440;
--track:#262d38;--bad:#ff8a80;--good:#6fd6a4;--c0:#5596ec;--c1:#2bbd89;--c2:#d99a1c;--c3:#a884ea;--others:#6d7685}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:15px/1.45 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:28px 20px;display:grid;
grid-template-columns:repeat(2,minmax(0,1fr));gap:16px}
header,.tiles,.wide{grid-column:1/-1}
nav{max-width:1180px;margin:0 auto;padding:16px 20px 0;display:flex;gap:14px;flex-wrap:wrap}
a{color:var(--c0)}
h1{font-size:22px;margin:0;overflow-wrap:anywhere}h2{font-size:15px;margin:0 0 12px}
h2 small,header p,footer{color:var(--soft);font-weight:400}
header p{margin:4px 0 0}.note{font-size:13px}.good{color:var(--good)}.bad,.tile.bad strong{color:var(--bad)}
.tiles{display:flex;flex-wrap:wrap;gap:12px}.tile{flex:1 1 140px}.tile.long{flex-basis:204px}
.tile,.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:14px 16px}
.tile small{display:block;color:var(--soft);font-size:12.5px}
.tile strong{display:block;font-size:20px;font-weight:600;line-height:1.3;font-variant-numeric:tabular-nums}
.tile.long strong{font-size:14.5px;line-height:26px;white-space:nowrap}
.chart{overflow-x:auto}svg{width:100%;min-width:640px;height:auto;display:block}
svg text{fill:var(--soft);font-size:12px}svg line{stroke:var(--line)}svg .tick{stroke:var(--soft)}
.c0{fill:var(--c0);background:var(--c0)}.c1{fill:var(--c1);background:var(--c1)}.c2{fill:var(--c2);background:var(--c2)}
.c3{fill:var(--c3);background:var(--c3)}.others{fill:var(--others);background:var(--others)}
.hover{fill:var(--ink);opacity:0}.hover:hover{opacity:.08}
.legend{display:flex;flex-wrap:wrap;gap:4px 18px;margin:8px 0 0;font-size:13px;color:var(--soft)}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:6px}
.bars{display:grid;grid-template-columns:minmax(0,max-content) minmax(60px,1fr) max-content;gap:7px 10px;
font-size:13.5px;
align-items:center}
.bars .name{overflow:hidden;text-overflow:ellipsis;white-space:nowrap;max-width:240px}
.bars .track{background:var(--track);border-radius:3px;height:12px}
.bars i{display:block;height:100%;border-radius:3px;background:var(--c0);min-width:1px}
.bars .number,td.count,td.bytes,th.count,th.bytes{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
summary{cursor:pointer}summary h2{display:inline}
input{display:block;margin:12px 0 8px;width:min(320px,100%);padding:6px 10px;border:1px solid var(--line);
border-radius:6px;background:var(--page);color:inherit;font:inherit}
.scroll{overflow:auto;max-height:420px}
table{border-collapse:collapse;width:100%;font-size:13.5px}
th,td{padding:5px 10px;text-align:left;border-bottom:1px solid var(--line)}
th{position:sticky;top:0;background:var(--card);cursor:pointer;white-space:nowrap;user-select:none}
td.time{white-space:nowrap}td.text{overflow-wrap:anywhere}
th[data-d="1"]::after{content:" ▲"}th[data-d="-1"]::after{content:" ▼"}
footer{max-width:1180px;margin:0 auto;padding:0 20px 32px;font-size:13px}
@media(max-width:760px){main{grid-template-columns:minmax(0,1fr)}}
@media print{.scroll{max-height:none}input{display:none}}
"""

SCRIPT = """
for(const box of document.querySelectorAll('details')){
const body=box.querySelector('tbody'),rows=[...body.rows];
box.querySelector('input').addEventListener('input',e=>{const wanted=e.target.value.toLowerCase();
for(const row of rows)row.hidden=!row.textContent.toLowerCase().includes(wanted)});
const heads=[...box.querySelectorAll('th')];
heads.forEach((head,at)=>head.addEventListener('click',()=>{
const up=head.dataset.d==='1'?-1:1;heads.forEach(h=>delete h.dataset.d);head.dataset.d=up;
const text=head.className==='text'||head.className==='time';
const value=row=>row.cells[at].dataset.v??row.cells[at].textContent;
rows.sort((a,b)=>up*(text?value(a).localeCompare(value(b)):(+value(a)||0)-(+value(b)||0)));
body.append(...rows)}))}
"""
