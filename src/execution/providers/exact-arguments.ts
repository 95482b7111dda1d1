import { randomBytes } from 'node:crypto'
import { ExactNumber, hasUnusualNumbers, isObject, parseExactJson, withDoubles } from '#core/base/exact-json.ts'

/**
 * Keeps the digits of numbers in arguments of calls that a vendor sends as JSON objects, which the packages parse into
 * doubles. In responses they become marked texts, and after the package they become numbers again.
 */

/** Precedes the digits. Random, so that no text of a model or a user is taken for a number. */
const MARK = `\u{e000}${randomBytes(12).toString('base64url')}:`

const mark = ({ digits }: ExactNumber): string => MARK + digits

/** Returns a JSON value with numbers in place of marked texts. */
export function unmarked(value: unknown): unknown {
  if (typeof value === 'string') return value.startsWith(MARK) ? new ExactNumber(value.slice(MARK.length)) : value
  if (Array.isArray(value)) return value.map(unmarked)
  return isObject(value) ? Object.fromEntries(Object.entries(value).map(([key, each]) => [key, unmarked(each)])) : value
}

/** Returns the arguments in the JSON that a package gives; none for a blank text. Throws a SyntaxError. */
export function parseModelArguments(json: string): unknown {
  if (json.trim() === '') return {}
  const parsed = parseExactJson(json)
  return json.includes(MARK) ? unmarked(parsed) : parsed
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
  /** Pieces of a line that has not ended, joined once: a line may arrive in thousands. */
  let rest: string[] = []
  const convert = (line: string): string => {
    const [prefix] = DATA.exec(line) ?? []
    return prefix === undefined ? line : prefix + markedJson(line.slice(prefix.length))
  }
  return new TransformStream({
    transform(chunk, controller) {
      const end = chunk.lastIndexOf('\n') + 1
      if (end > 0) {
        const lines = [...rest, chunk.slice(0, end - 1)].join('').split('\n')
        controller.enqueue(lines.map(line => `${convert(line)}\n`).join(''))
        rest = []
      }
      if (end < chunk.length) rest.push(chunk.slice(end))
    },
    flush(controller) {
      if (rest.length > 0) controller.enqueue(convert(rest.join('')))
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
