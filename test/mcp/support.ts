import { Client as NewClient, StreamableHTTPClientTransport as NewTransport } from '@modelcontextprotocol/client'
import { Client as OldClient } from '@modelcontextprotocol/sdk/client/index.js'
import { StreamableHTTPClientTransport as OldTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js'

export const MODERN = '2026-07-28'
const TASKS = 'io.modelcontextprotocol/tasks'

export type Sent = { status: number; headers: Headers; body: any }

export type Ask = {
  /** Revision of the protocol; without one a request of 2025-11-25. */
  revision?: string | null
  capabilities?: Record<string, unknown>
  query?: string
  headers?: Record<string, string>
  meta?: Record<string, unknown>
  signal?: AbortSignal
}

export const withTasks = { extensions: { [TASKS]: {} } }
export const withForms = { ...withTasks, elicitation: { form: {} } }

/** Sends one raw request without an SDK. */
export function wire(url: string, token: string | null) {
  let id = 0
  return async (method: string, params: Record<string, any> = {}, ask: Ask = {}): Promise<Sent> => {
    const { revision = MODERN, capabilities = {}, query = '', headers = {}, meta = {}, signal } = ask
    const modern = revision === MODERN
    const name = params.name ?? params.uri ?? params.taskId
    const _meta = modern
      ? {
          'io.modelcontextprotocol/protocolVersion': revision,
          'io.modelcontextprotocol/clientCapabilities': capabilities,
          'io.modelcontextprotocol/clientInfo': { name: 'test', version: '1' },
          ...meta,
        }
      : meta
    const response = await fetch(`${url}/mcp${query}`, {
      method: 'POST',
      signal,
      headers: {
        'content-type': 'application/json',
        accept: 'application/json',
        ...(token ? { authorization: `Bearer ${token}` } : {}),
        ...(revision ? { 'mcp-protocol-version': revision } : {}),
        ...(modern ? { 'mcp-method': method, ...(name ? { 'mcp-name': name } : {}) } : {}),
        ...headers,
      },
      body: JSON.stringify({
        jsonrpc: '2.0',
        id: ++id,
        method,
        params: { ...params, ...(Object.keys(_meta).length > 0 ? { _meta } : {}) },
      }),
    })
    const text = await response.text()
    const json = response.headers.get('content-type')?.includes('json')
    return { status: response.status, headers: response.headers, body: json && text ? JSON.parse(text) : text }
  }
}

/** Opens a stream of tasks with forms; `next` waits for the next notification about one of them. */
export async function openStream(url: string, token: string | null, notifications: object, signal: AbortSignal) {
  const method = 'subscriptions/listen'
  const _meta = {
    'io.modelcontextprotocol/protocolVersion': MODERN,
    'io.modelcontextprotocol/clientCapabilities': withForms,
  }
  const response = await fetch(`${url}/mcp`, {
    method: 'POST',
    signal,
    headers: {
      'content-type': 'application/json',
      authorization: `Bearer ${token}`,
      'mcp-protocol-version': MODERN,
      'mcp-method': method,
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method, params: { notifications, _meta } }),
  })
  const reader = (response.body as ReadableStream<Uint8Array>).pipeThrough(new TextDecoderStream()).getReader()
  let text = ''
  return {
    async next(): Promise<any> {
      for (;;) {
        const end = text.indexOf('\n\n')
        if (end < 0) {
          const { done, value } = await reader.read()
          if (done) throw new Error('the stream has ended')
          text += value
          continue
        }
        const data = /^data: (.+)$/m.exec(text.slice(0, end))?.[1]
        text = text.slice(end + 2)
        const message = data && JSON.parse(data)
        if (message?.method === 'notifications/tasks') return message
      }
    },
  }
}

/** Calls one tool, and gives the result; of a refusal of the protocol its error. */
export function tools(url: string, token: string | null, base: Ask = {}) {
  const send = wire(url, token)
  return async (name: string, args: Record<string, unknown> = {}, ask: Ask = {}): Promise<any> => {
    const { status, body } = await send('tools/call', { name, arguments: args }, { ...base, ...ask })
    return body.result ?? { status, ...body }
  }
}

const requestInit = (token: string) => ({ headers: { authorization: `Bearer ${token}` } })

/** The official clients: the second line in both eras, and the first. */
export const clients: Record<string, (url: string, token: string, query?: string) => Promise<any>> = {
  async 'client 2 of 2026-07-28'(url, token, query = '') {
    const client = new NewClient({ name: 'test', version: '1' }, {
      versionNegotiation: { mode: { pin: MODERN } },
    } as never)
    await client.connect(new NewTransport(new URL(`${url}/mcp${query}`), { requestInit: requestInit(token) }) as never)
    return client
  },
  async 'client 2 of 2025-11-25'(url, token, query = '') {
    const client = new NewClient({ name: 'test', version: '1' }, { versionNegotiation: { mode: 'legacy' } } as never)
    await client.connect(new NewTransport(new URL(`${url}/mcp${query}`), { requestInit: requestInit(token) }) as never)
    return client
  },
  async 'client 1'(url, token, query = '') {
    const client = new OldClient({ name: 'test', version: '1' })
    await client.connect(new OldTransport(new URL(`${url}/mcp${query}`), { requestInit: requestInit(token) }) as never)
    return client
  },
}
