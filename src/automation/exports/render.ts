import { htmlOf } from './html.ts'
import { markdownOf } from './markdown.ts'
import type { ExportFormat } from './model.ts'
import { interleave } from './printable-text.ts'
import type { CaseSnapshot } from './snapshot.ts'

/** A record a line: what is large is never one text. */
function* jsonOf(snapshot: CaseSnapshot): Generator<string> {
  const member = function* (name: string, value: unknown): Generator<string> {
    yield `${JSON.stringify(name)}: `
    if (!Array.isArray(value) || value.length === 0) {
      yield JSON.stringify(value)
      return
    }
    yield '[\n'
    yield* interleave(
      value.map(item => ({
        *[Symbol.iterator]() {
          yield JSON.stringify(item)
        },
      })),
      ',\n',
    )
    yield '\n]'
  }
  yield '{\n'
  yield* interleave(
    Object.entries(snapshot).map(([name, value]) => member(name, value)),
    ',\n',
  )
  yield '\n}\n'
}

/** How each format is made, piece by piece, and called. */
export const RENDERERS: Record<
  ExportFormat,
  { extension: string; type: string; render: (snapshot: CaseSnapshot) => Iterable<string> }
> = {
  json: { extension: 'json', type: 'application/json', render: jsonOf },
  markdown: { extension: 'md', type: 'text/markdown', render: markdownOf },
  html: { extension: 'html', type: 'text/html', render: htmlOf },
}
