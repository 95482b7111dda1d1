import { ExactNumber, hasUnusualNumbers, isObject, parseExactJson, withDoubles } from '../../core/api/exact-json.ts'

/**
 * Keeps the digits of numbers in arguments of calls that a vendor sends as JSON objects, which the packages parse into
 * doubles. In responses they become marked texts, and after the package they become numbers again.
 */

/** Private-use character around the digits. */
const MARK = '\u{e000}'
const MARKED = /"\u{e000}(-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)\u{e000}"/gu

const mark = ({ digits }: ExactNumber): string => `${MARK}${digits}${MARK}`

/** Returns the arguments in the JSON that a package gives; none for a blank text. Throws a SyntaxError. */
export function parseModelArguments(json: string): unknown {
  if (json.trim() === '') return {}
  return parseExactJson(json.includes(MARK) ? json.replace(MARKED, '$1') : json)
}

/** Marks the numbers in arguments: of Google `args`, of Anthropic and Bedrock `input`, next to the name of the tool. */
function marked(value: unknown): unknown {
  if (value instanceof ExactNumber) return Number(value.digits)
  if (Array.isArray(value)) return value.map(marked)
  if (!isObject(value)) return value
  const isCall = typeof value.name === 'string'
  return Object.fromEntries(
    Object.entries(value).map(([key, each]) => [
      key,
      isCall && (key === 'args' || key === 'input') ? withDoubles(each, mark) : marked(each),
    ]),
  )
}

function markedJson(text: string): string {
  if (!hasUnusualNumbers(text)) return text
  try {
    return JSON.stringify(marked(parseExactJson(text)))
  } catch {
    return text
  }
}

const DATA = /^data: ?/

/** Marks the numbers in the events of a stream, each of which has its data in one line. */
function markedLines(): TransformStream<string, string> {
  let rest = ''
  const convert = (line: string): string => {
    const [prefix] = DATA.exec(line) ?? []
    return prefix === undefined ? line : prefix + markedJson(line.slice(prefix.length))
  }
  return new TransformStream({
    transform(chunk, controller) {
      const lines = (rest + chunk).split('\n')
      rest = lines.pop() as string
      if (lines.length > 0) controller.enqueue(lines.map(line => `${convert(line)}\n`).join(''))
    },
    flush(controller) {
      if (rest !== '') controller.enqueue(convert(rest))
    },
  })
}

/** Returns `fetch` whose answers have marks in the arguments of calls. */
export function markingFetch(fetch: typeof globalThis.fetch): typeof globalThis.fetch {
  return async (input, init) => {
    const response = await fetch(input, init)
    const type = response.headers.get('content-type') ?? ''
    if (!response.ok || !response.body) return response
    if (type.includes('application/json')) return withBody(response, markedJson(await response.text()))
    if (!type.includes('text/event-stream')) return response
    const lines = response.body.pipeThrough(new TextDecoderStream()).pipeThrough(markedLines())
    return withBody(response, lines.pipeThrough(new TextEncoderStream()))
  }
}

function withBody({ status, statusText, headers }: Response, body: string | ReadableStream): Response {
  const kept = new Headers(headers)
  kept.delete('content-length')
  kept.delete('content-encoding')
  return new Response(body, { status, statusText, headers: kept })
}
