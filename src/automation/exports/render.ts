import { htmlOf } from './html.ts'
import { markdownOf } from './markdown.ts'
import type { Format } from './model.ts'
import type { Snapshot } from './snapshot.ts'
import { joined } from './text.ts'

/** A record a line: what is large is never one text. */
function* jsonOf(snapshot: Snapshot): Generator<string> {
  const member = function* (name: string, value: unknown): Generator<string> {
    yield `${JSON.stringify(name)}: `
    if (!Array.isArray(value) || value.length === 0) {
      yield JSON.stringify(value)
      return
    }
    yield '[\n'
    yield* joined(
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
  yield* joined(
    Object.entries(snapshot).map(([name, value]) => member(name, value)),
    ',\n',
  )
  yield '\n}\n'
}

/** How each format is made, piece by piece, and called. */
export const RENDERERS: Record<
  Format,
  { extension: string; type: string; render: (snapshot: Snapshot) => Iterable<string> }
> = {
  json: { extension: 'json', type: 'application/json', render: jsonOf },
  markdown: { extension: 'md', type: 'text/markdown', render: markdownOf },
  html: { extension: 'html', type: 'text/html', render: htmlOf },
}
