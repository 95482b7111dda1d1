import OpenAI, { type ClientOptions } from 'openai'
import { type SessionApp, startSessionApp } from '../conversation/session-support.ts'
import { client as doubleControl } from '../local/double/client.ts'

type Json = Record<string, any>

/** An application with the mount, and clients of it. */
export type OpenAiApp = SessionApp & {
  base: string
  /** The openai package with a credential, without retries unless set. */
  openai(token: string | null, options?: Partial<ClientOptions>): OpenAI
  /** A POST as one credential. */
  send(
    path: string,
    body: Json,
    options?: { token?: string | null; headers?: Record<string, string> },
  ): Promise<Response>
  lanes: ReturnType<typeof doubleControl>
  chat(fields?: Json): Promise<Json>
}

export async function startOpenAiApp(options: Parameters<typeof startSessionApp>[0] = {}): Promise<OpenAiApp> {
  const app = await startSessionApp(options)
  const base = `${app.url}/openai/v1`
  return {
    ...app,
    base,
    lanes: doubleControl(app.double),
    openai: (token, more = {}) => new OpenAI({ baseURL: base, apiKey: token ?? 'none', maxRetries: 0, ...more }),
    send: (path, body, { token = app.key.token, headers = {} } = {}) =>
      fetch(`${base}${path}`, {
        method: 'POST',
        headers: {
          'content-type': 'application/json',
          ...(token === null ? {} : { authorization: `Bearer ${token}` }),
          ...headers,
        },
        body: JSON.stringify(body),
      }),
    async chat(fields = {}) {
      const made = await app.admin.post('/chats', {
        project_id: app.projectId,
        ai_provider_id: app.providerId,
        ...fields,
      })
      if (made.status !== 201) throw new Error(JSON.stringify(made.body))
      return made.body
    },
  }
}

/** The lines of a streamed answer. */
export async function dataLines(response: Response): Promise<string[]> {
  const text = await response.text()
  return text
    .split('\n')
    .filter(line => line.startsWith('data: '))
    .map(line => line.slice('data: '.length))
}
