import assert from 'node:assert/strict'
import type { Script } from '#local/double/script.ts'
import type { Double } from '#local/double/server.ts'

type Json = Record<string, any>

/** A client of one double, for tests. */
export function client(double: Double) {
  const send = (method: string, path: string, body?: unknown, headers: Record<string, string> = {}) =>
    fetch(double.url + path, {
      method,
      headers: { 'content-type': 'application/json', ...headers },
      ...(body !== undefined && { body: typeof body === 'string' ? body : JSON.stringify(body) }),
    })
  const read = async (method: string, path: string, body?: unknown): Promise<Json> => {
    const response = await send(method, path, body)
    assert.equal(response.status, 200, `${method} ${path}`)
    return (await response.json()) as Json
  }
  const chat = (body: Json | string, headers?: Record<string, string>) =>
    send(
      'POST',
      '/v1/chat/completions',
      typeof body === 'string'
        ? { model: 'double-1', messages: [{ role: 'user', content: body }] }
        : { model: 'double-1', messages: [{ role: 'user', content: 'hi' }], ...body },
      headers,
    )

  return {
    send,
    read,
    /** Sends a chat request; a bare string is the user's text. */
    chat,
    /** Sends a chat request in a lane and gives the parsed answer. */
    async answer(lane: string, body: Json | string = {}): Promise<Json> {
      return (await (await chat(body, { 'x-double-lane': lane })).json()) as Json
    },
    /** The text answered in a lane. */
    async text(lane: string, body: Json | string = {}): Promise<string> {
      const answer = (await (await chat(body, { 'x-double-lane': lane })).json()) as Json
      return answer.choices[0].message.content
    },
    /** The raw text of a streamed answer. */
    async raw(lane: string, body: Json = {}): Promise<string> {
      return (await chat({ stream: true, ...body }, { 'x-double-lane': lane })).text()
    },
    /** The parsed frames of a streamed answer that ended well. */
    async frames(lane: string, body: Json = {}): Promise<Json[]> {
      return framesOf(await (await chat({ stream: true, ...body }, { 'x-double-lane': lane })).text())
    },
    put: (lane: string, script: Omit<Script, 'lane'>) => read('PUT', `/control/lanes/${lane}`, script),
    async requests(lane: string): Promise<Json[]> {
      return (await read('GET', `/control/requests?lane=${lane}`)).data
    },
    async gate(name: string): Promise<Json | undefined> {
      return (await read('GET', '/control/gates')).data.find((each: Json) => each.gate === name)
    },
  }
}

/** Splits a stream into its frames; the last must be `[DONE]`. */
export function framesOf(raw: string): Json[] {
  assert.ok(raw.endsWith('data: [DONE]\n\n'), raw)
  return raw
    .split('\n\n')
    .filter(line => line.startsWith('data: {'))
    .map(line => JSON.parse(line.slice(6)))
}

/** The text pieces of a streamed answer. */
export function piecesOf(frames: Json[]): string[] {
  return frames.flatMap(frame => frame.choices.map((choice: Json) => choice.delta.content)).filter(piece => piece)
}

/** Waits until a check holds. */
export async function until(check: () => Promise<boolean>): Promise<void> {
  for (let tries = 0; tries < 3000; tries += 1) {
    if (await check()) return
    await new Promise(resolve => setTimeout(resolve, 10))
  }
  assert.fail('did not come true in half a minute')
}

/** A function tool as a chat request offers it. */
export function tool(name: string, parameters: unknown = { type: 'object', properties: {} }) {
  return { type: 'function', function: { name, parameters } }
}

/** The messages of a turn after one tool call: user, assistant with the call, result. */
export function afterTool(name: string, result: string) {
  return [
    { role: 'user', content: 'go' },
    {
      role: 'assistant',
      content: null,
      tool_calls: [{ id: 'c1', type: 'function', function: { name, arguments: '{}' } }],
    },
    { role: 'tool', tool_call_id: 'c1', content: result },
  ]
}
