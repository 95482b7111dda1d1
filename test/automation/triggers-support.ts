import assert from 'node:assert/strict'
import { createHmac } from 'node:crypto'
import { type AgentApp, startAgentApp } from '../execution/fixtures.ts'
import { made, startTarget, type Target } from '../execution/tool-target.ts'
import { type Client, eventually, type Reply } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'

export const ACTIONS = [
  'triggers:*',
  'agents:*',
  'tools:*',
  'generations:*',
  'traces:*',
  'events:*',
  'audit:*',
  'activity:*',
  'exceptions:*',
  'actors:*',
  'webhooks:*',
]

/** Short leases, so that a lost worker is detected within seconds. */
export const FAST = {
  GENERATION_LEASE_SECONDS: '2',
  GENERATION_SWEEP_SECONDS: '1',
  TRIGGER_FIRING_LEASE_SECONDS: '2',
  TRIGGER_SCHEDULER_INTERVAL_MS: '1000',
  SHUTDOWN_GRACE_MS: '300',
  EGRESS_ALLOW_HOSTS: '127.0.0.1',
}

export type TriggerApp = AgentApp & { target: Target; toolId: string }

/** Starts an app with an agent, a tool and trigger workers. */
export async function startTriggerApp(
  options: Parameters<typeof startAgentApp>[0] & { actions?: readonly string[] } = {},
): Promise<TriggerApp> {
  const target = await startTarget()
  const { env, ...more } = options
  const app = await startAgentApp({
    workers: ['trigger', 'generation', 'delivery'],
    actions: ACTIONS,
    env: { ...FAST, ...env },
    ...more,
  })
  const toolId = (await made(app.admin, { project_id: app.projectId, execute: { url: target.url } })).id
  return {
    ...app,
    target,
    toolId,
    async close() {
      await app.close()
      await target.close()
    },
  }
}

let counter = 0

export const tryTrigger = (key: Client, fields: Record<string, unknown>): Promise<Reply> =>
  key.post('/triggers', { name: `trigger ${++counter}`, type: 'manual', ...fields })

export async function madeTrigger(key: Client, fields: Record<string, unknown>): Promise<any> {
  const reply = await tryTrigger(key, fields)
  assert.equal(reply.status, 201, JSON.stringify(reply.body))
  return reply.body
}

export const codeOf = ({ status, body }: Reply): [number, string] => [status, body?.error?.code]

/** Fires a trigger and waits until the firing settles. */
export async function fired(key: Client, id: string, input?: object): Promise<any> {
  return createdBy(key, `/triggers/${id}/fire`, { input }, 200)
}

export const firingsOf = async (key: Client, id: string): Promise<any[]> =>
  (await key.get(`/trigger-firings?trigger_id=${id}&limit=100`)).body.data

/** Waits until a firing has settled. */
export const ended = (key: Client, id: string): Promise<any> =>
  eventually(
    async () => {
      const { body } = await key.get(`/trigger-firings/${id}`)
      return body.status === 'succeeded' || body.status === 'failed' ? body : null
    },
    { what: `end of ${id}` },
  )

/** Waits for a number of settled firings of a trigger. Returns them oldest first. */
export const allEnded = (key: Client, id: string, count: number): Promise<any[]> =>
  eventually(
    async () => {
      const all = await firingsOf(key, id)
      const over = all.every(({ status }) => status === 'succeeded' || status === 'failed')
      return all.length >= count && over ? all.reverse() : null
    },
    { what: `${count} firings of ${id}` },
  )

export const signatureOf = (secret: string, body: string | Buffer, at = Math.floor(Date.now() / 1000)): string =>
  `t=${at},v1=${createHmac('sha256', secret).update(`${at}.`).update(body).digest('hex')}`

/** Calls the hook of a trigger, signed with its secret unless headers are given. */
export async function hook(
  url: string,
  trigger: { id: string; secret?: string },
  body: string | Buffer,
  headers?: Record<string, string>,
): Promise<{ status: number; body: any }> {
  const answer = await fetch(`${url}/api/v1/hooks/triggers/${trigger.id}`, {
    method: 'POST',
    body: body as never,
    headers: headers ?? { 'X-Svc-Signature': signatureOf(trigger.secret as string, body) },
  })
  const text = await answer.text()
  return { status: answer.status, body: text && JSON.parse(text) }
}
