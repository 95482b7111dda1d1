import { createHash } from 'node:crypto'
import { type OutlineBlock, outlineCase, titleOf, type Value } from './outline.ts'
import { inLine, interleave, prettyJson, toPrintable } from './printable-text.ts'
import type { CaseSnapshot } from './snapshot.ts'

const STYLE = `body{font:15px/1.5 system-ui,sans-serif;color:#1b1b1b;background:#fff;max-width:60rem;margin:2rem auto;padding:0 1rem;overflow-wrap:anywhere}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem;border-bottom:1px solid #ccc}h3{font-size:1rem;margin-bottom:.3rem}
table{border-collapse:collapse;width:100%;margin:.5rem 0}th,td{border:1px solid #ccc;padding:.25rem .5rem;text-align:left;vertical-align:top}
th{background:#f3f3f3;font-weight:600}.facts th{width:10rem}
pre,blockquote{margin:.5rem 0;padding:.5rem .75rem;background:#f7f7f7;white-space:pre-wrap}blockquote{border-left:3px solid #bbb}
code,pre{font:13px/1.4 ui-monospace,monospace}.note{color:#555;margin:.6rem 0 .2rem}li{margin-bottom:1rem}
@media print{body{margin:0;max-width:none}pre,blockquote{background:none;border:1px solid #ccc}tr,h3{break-inside:avoid}}`

/** Nothing is loaded, run, framed or sent: the one style is known by its hash. */
const POLICY = `default-src 'none'; style-src 'sha256-${createHash('sha256').update(STYLE).digest('base64')}'; base-uri 'none'; form-action 'none'`

const ENTITIES: Record<string, string> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
  '`': '&#96;',
}
const escaped = (text: string): string => text.replace(/[&<>"'`]/g, found => ENTITIES[found])

/** Text of a record, apart from what is around it whatever direction it is written in. */
const oneLine = (text: string): string => `<bdi>${escaped(inLine(text))}</bdi>`

/** An address that a browser would open over HTTP; any other is text. */
function linkTo(url: string): string {
  const shown = oneLine(url)
  const parsed = URL.parse(url)
  return parsed && ['http:', 'https:'].includes(parsed.protocol)
    ? `<a href="${escaped(parsed.href)}" rel="noopener noreferrer nofollow">${shown}</a>`
    : shown
}

function valueText(value: Value): string {
  if (value === null) return ''
  if (typeof value === 'string') return oneLine(value)
  return 'code' in value ? `<code>${oneLine(value.code)}</code>` : linkTo(value.url)
}

const cells = (tag: 'td' | 'th', texts: readonly string[]): string =>
  texts.map(text => `<${tag}>${text}</${tag}>`).join('')

function* pieces(block: OutlineBlock): Generator<string> {
  if ('heading' in block) yield `<h${block.level}>${oneLine(block.heading)}</h${block.level}>`
  else if ('facts' in block) {
    yield '<table class="facts">\n'
    for (const [label, value] of block.facts) yield `<tr><th>${label}</th><td>${valueText(value)}</td></tr>\n`
    yield '</table>'
  } else if ('rows' in block) {
    yield `<table>\n<tr>${cells('th', block.head)}</tr>\n`
    for (const values of block.rows) yield `<tr>${cells('td', values.map(valueText))}</tr>\n`
    yield '</table>'
  } else if ('text' in block) yield `<blockquote dir="auto">${escaped(toPrintable(block.text))}</blockquote>`
  else if ('data' in block) yield `<pre>${escaped(prettyJson(block.data))}</pre>`
  else if ('note' in block) yield `<p class="note">${block.note}</p>`
  else {
    yield '<ol>\n'
    for (const { title, blocks } of block.steps) {
      yield `<li><strong>${oneLine(title)}</strong>\n`
      yield* interleave(blocks.map(pieces), '\n')
      yield '</li>\n'
    }
    yield '</ol>'
  }
}

/** An export as one page that opens without a network: no script, nothing loaded, nothing of a record read as HTML. */
export function* htmlOf(snapshot: CaseSnapshot): Generator<string> {
  yield `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${POLICY}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escaped(inLine(titleOf(snapshot)))}</title>
<style>${STYLE}</style>
</head>
<body>
`
  yield* interleave(outlineCase(snapshot).map(pieces), '\n')
  yield '\n</body>\n</html>\n'
}
