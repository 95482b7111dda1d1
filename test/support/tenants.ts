import type { Client, TestApp } from './app.ts'
import { client } from './app.ts'

/** Projects next to each other, for the cost of one for another. Calls go to the web process at `url`. */
export type Tenant = {
  project: string
  key: Client
  /** Requests a turn whose model takes `ms`; returns when it is queued, or with `wait` when it is done. */
  ask(ms: number, wait?: boolean): Promise<void>
  /** Subscribes an address to the project's events. */
  subscribe(url: string): Promise<void>
  /** Makes an event. */
  write(): Promise<void>
}

/** A project with an agent of the model at `model`; its prompts begin with `name`. */
export async function makeTenant(app: TestApp, url: string, model: string, name: string): Promise<Tenant> {
  const { id, key: made } = await app.project(name)
  const key = client(url, made.token)
  const post = async (path: string, body: object, status: number) => {
    const answer = await key.post(path, body)
    if (answer.status !== status) throw new Error(`${path}: ${answer.status} ${JSON.stringify(answer.body)}`)
    return answer.body
  }
  const provider = { name: 'double', provider: 'custom', default_model: 'double-1', base_url: `${model}/v1` }
  const { id: ai_provider_id } = await post('/ai-providers', provider, 201)
  const { id: agent } = await post('/agents', { name: 'agent', ai_provider_id }, 201)
  let written = 0
  return {
    project: id,
    key,
    async ask(ms, wait = false) {
      const reply = { text: 'done', delay_ms: ms }
      const prompt = `${name} @double ${JSON.stringify(reply)}`
      await post(`/agents/${agent}/generate?wait=${wait}`, { prompt }, wait ? 200 : 202)
    },
    async subscribe(url) {
      await post('/webhooks', { name: 'hook', url, events: ['actors.*'] }, 201)
    },
    async write() {
      await post('/actors', { name: `${name} ${written++}` }, 201)
    },
  }
}

/** The names of the tenants whose turns reached the model, in the order they did. */
export async function turnsStarted(model: string): Promise<string[]> {
  const { data } = (await (await fetch(`${model}/control/requests`)).json()) as {
    data: { body: { messages: { role: string; content: unknown }[] } }[]
  }
  return data.map(({ body }) => {
    const prompt = JSON.stringify(body.messages.findLast(({ role }) => role === 'user')?.content)
    return /"([^"@]+) @double/.exec(prompt)?.[1] ?? prompt
  })
}
