import { createHash } from 'node:crypto'
import { type OutlineBlock, outlineCase, titleOf, type Value } from './outline.ts'
import { interleave, prettyJson, toPrintable, toSingleLine } from './printable-text.ts'
import type { CaseSnapshot } from './snapshot.ts'

const STYLE = `body{font:15px/1.5 system-ui,sans-serif;color:#1b1b1b;background:#fff;max-width:60rem;margin:2rem auto;padding:0 1rem;overflow-wrap:anywhere}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem;border-bottom:1px solid #ccc}h3{font-size:1rem;margin-bottom:.3rem}
table{border-collapse:collapse;width:100%;margin:.5rem 0}th,td{border:1px solid #ccc;padding:.25rem .5rem;text-align:left;vertical-align:top}
th{background:#f3f3f3;font-weight:600}.facts th{width:10rem}
pre,blockquote{margin:.5rem 0;padding:.5rem .75rem;background:#f7f7f7;white-space:pre-wrap}blockquote{border-left:3px solid #bbb}
code,pre{font:13px/1.4 ui-monospace,monospace}.note{color:#555;margin:.6rem 0 .2rem}li{margin-bottom:1rem}
@media print{body{margin:0;max-width:none}pre,blockquote{background:none;border:1px solid #ccc}tr,h3{break-inside:avoid}}`

/** Content security policy: only the inline style, allowed by its hash. */
const POLICY = `default-src 'none'; style-src 'sha256-${createHash('sha256').update(STYLE).digest('base64')}'; base-uri 'none'; form-action 'none'`

const ENTITIES: Record<string, string> = {
  '&': '&amp;',
  '<': '&lt;',
  '>': '&gt;',
  '"': '&quot;',
  "'": '&#39;',
  '`': '&#96;',
}
const escapeHtml = (text: string): string => text.replace(/[&<>"'`]/g, character => ENTITIES[character])

/** Renders text of a record in one line. `bdi` isolates its text direction from the surroundings. */
const renderLine = (text: string): string => `<bdi>${escapeHtml(toSingleLine(text))}</bdi>`

/** Renders an HTTP URL as a link and any other URL as text. */
function renderUrl(url: string): string {
  const text = renderLine(url)
  const parsed = URL.parse(url)
  return parsed && ['http:', 'https:'].includes(parsed.protocol)
    ? `<a href="${escapeHtml(parsed.href)}" rel="noopener noreferrer nofollow">${text}</a>`
    : text
}

function renderValue(value: Value): string {
  if (value === null) return ''
  if (typeof value === 'string') return renderLine(value)
  return 'code' in value ? `<code>${renderLine(value.code)}</code>` : renderUrl(value.url)
}

const renderCells = (tag: 'td' | 'th', texts: readonly string[]): string =>
  texts.map(text => `<${tag}>${text}</${tag}>`).join('')

function* renderBlock(block: OutlineBlock): Generator<string> {
  if ('heading' in block) yield `<h${block.level}>${renderLine(block.heading)}</h${block.level}>`
  else if ('facts' in block) {
    yield '<table class="facts">\n'
    for (const [label, value] of block.facts) yield `<tr><th>${label}</th><td>${renderValue(value)}</td></tr>\n`
    yield '</table>'
  } else if ('rows' in block) {
    yield `<table>\n<tr>${renderCells('th', block.head)}</tr>\n`
    for (const values of block.rows) yield `<tr>${renderCells('td', values.map(renderValue))}</tr>\n`
    yield '</table>'
  } else if ('text' in block) yield `<blockquote dir="auto">${escapeHtml(toPrintable(block.text))}</blockquote>`
  else if ('data' in block) yield `<pre>${escapeHtml(prettyJson(block.data))}</pre>`
  else if ('note' in block) yield `<p class="note">${block.note}</p>`
  else {
    yield '<ol>\n'
    for (const { title, blocks } of block.steps) {
      yield `<li><strong>${renderLine(title)}</strong>\n`
      yield* interleave(blocks.map(renderBlock), '\n')
      yield '</li>\n'
    }
    yield '</ol>'
  }
}

/** Renders an export as one self-contained page without scripts. Text of records is escaped. */
export function* renderHtml(snapshot: CaseSnapshot): Generator<string> {
  yield `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="${POLICY}">
<meta name="referrer" content="no-referrer">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(toSingleLine(titleOf(snapshot)))}</title>
<style>${STYLE}</style>
</head>
<body>
`
  yield* interleave(outlineCase(snapshot).map(renderBlock), '\n')
  yield '\n</body>\n</html>\n'
}
