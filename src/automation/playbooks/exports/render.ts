import { renderHtml } from './html.ts'
import { renderMarkdown } from './markdown.ts'
import type { ExportFormat } from './model.ts'
import { interleave } from './printable-text.ts'
import type { CaseSnapshot } from './snapshot.ts'

/** Renders an export as JSON with one record per line, so that no large string is built. */
function* renderJson(snapshot: CaseSnapshot): Generator<string> {
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

/** Renderers, each yielding its output in chunks, with file extension and content type. */
export const RENDERERS: Record<
  ExportFormat,
  { extension: string; type: string; render: (snapshot: CaseSnapshot) => Iterable<string> }
> = {
  json: { extension: 'json', type: 'application/json', render: renderJson },
  markdown: { extension: 'md', type: 'text/markdown', render: renderMarkdown },
  html: { extension: 'html', type: 'text/html', render: renderHtml },
}
