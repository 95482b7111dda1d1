import assert from 'node:assert/strict'
import type { DoubleRule } from '#local/double/script.ts'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { type Message, openStream } from '../execution/streams.ts'
import { type Client, eventually, type Reply } from '../support/app.ts'

type Json = Record<string, any>

/** An application with an agent on a separate lane of the model double, and the few calls every session test makes. */
export type SessionApp = AgentApp & {
  /** An agent whose model answers by these rules. */
  scripted(rules: DoubleRule[], fields?: Json): Promise<{ agentId: string; requests(): Promise<Json[]> }>
  session(fields?: Json): Promise<Json>
  say(session: Json, message: string, fields?: Json): Promise<Json>
  generate(session: Json, query?: string, body?: Json): Promise<Reply>
  /** A turn that is streamed: its messages once it has ended, and the text that has come so far. */
  streamed(session: Json): Promise<{ stream: Promise<Message[]>; text(): string }>
  messages(session: Json): Promise<Json[]>
  generation(id: string): Promise<Json>
  /** The generation once it is at its end. */
  settled(id: string): Promise<Json>
  /** Events of the project by name, oldest first. */
  events(name: string): Promise<Json[]>
  openGate(name: string): Promise<void>
  /** Waits until a request is held at the gate. */
  atGate(name: string, waiting?: number): Promise<void>
}

let lanes = 0

/** Calls of the control routes of a double. */
async function control(url: string, method: string, path: string, body?: unknown): Promise<Json> {
  const response = await fetch(`${url}/control${path}`, {
    method,
    headers: { 'content-type': 'application/json' },
    body: body === undefined ? undefined : JSON.stringify(body),
  })
  const text = await response.text()
  assert.equal(response.status, 200, text)
  return JSON.parse(text) as Json
}

/** Answers the body of a reply that has the status expected. */
export function expectStatus(reply: Reply, status: number): any {
  assert.equal(reply.status, status, JSON.stringify(reply.body))
  return reply.body
}

/** Answers the error of a reply that refuses with the status and the code. */
export function expectRefusal(reply: Reply, status: number, code: string): Json {
  assert.deepEqual([reply.status, reply.body?.error?.code], [status, code], JSON.stringify(reply.body))
  return reply.body.error
}

export async function startSessionApp(options: Parameters<typeof startAgentApp>[0] = {}): Promise<SessionApp> {
  const app = await startAgentApp(options)
  const { key, double } = app
  const generation = async (id: string) => expectStatus(await key.get(`/generations/${id}`), 200)
  return {
    ...app,
    async scripted(rules, fields = {}) {
      const lane = `lane${++lanes}`
      await control(double.url, 'PUT', `/lanes/${lane}`, { lane, rules })
      return {
        agentId: await app.agent({ model: `${lane}/double-1`, ...fields }),
        requests: async () => (await control(double.url, 'GET', `/requests?lane=${lane}`)).data,
      }
    },
    session: async (fields = {}) =>
      expectStatus(await key.post('/sessions', { agent_id: app.agentId, ...fields }), 201),
    say: async (session, message, fields = {}) =>
      expectStatus(await key.post(`/sessions/${session.id}/messages`, { message, ...fields }), 201),
    generate: (session, query = '', body) => key.post(`/sessions/${session.id}/generate${query}`, body),
    async streamed(session) {
      const { messages } = await openStream({ url: app.url, key }, `/sessions/${session.id}/generate`, { stream: true })
      const seen: Message[] = []
      const stream = (async () => {
        for await (const message of messages) seen.push(message)
        return seen
      })()
      const pieces = () =>
        seen.filter(({ event }) => event === 'delta').map(({ data }) => data.choices[0].delta.content)
      return { stream, text: () => pieces().join('') }
    },
    messages: async session => expectStatus(await key.get(`/sessions/${session.id}/messages?limit=100`), 200).data,
    generation,
    settled: id =>
      eventually(
        async () => {
          const found = await generation(id)
          return found.status === 'completed' || found.status === 'failed' ? found : null
        },
        { what: `the end of ${id}` },
      ),
    events: async name =>
      expectStatus(
        await app.admin.get(`/events?event=${name}&limit=100&project_id=${app.projectId}`),
        200,
      ).data.reverse(),
    openGate: async name => {
      await control(double.url, 'POST', `/gates/${name}/open`)
    },
    atGate: async (name, waiting = 1) => {
      await eventually(
        async () => {
          const { data } = await control(double.url, 'GET', '/gates')
          return data.find((gate: Json) => gate.gate === name)?.waiting >= waiting
        },
        { what: `${waiting} requests at ${name}` },
      )
    },
  }
}

export const contents = (messages: Json[]): string[] => messages.map(message => message.content)
export const roles = (messages: Json[]): string[] => messages.map(message => message.role)
export type { Client }
