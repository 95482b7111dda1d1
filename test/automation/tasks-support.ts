import assert from 'node:assert/strict'
import { type Client, eventually, type Reply } from '../support/app.ts'
import { startTriggerApp, type TriggerApp } from './triggers-support.ts'

export const ACTIONS = [
  'workflows:*',
  'tasks:*',
  'agents:*',
  'tools:*',
  'triggers:*',
  'orchestrations:*',
  'approvals:*',
  'exceptions:*',
  'activity:*',
  'events:ListEvents',
  'generations:*',
]

/** Short leases and intervals, so that a lost worker is detected within seconds. */
export const FAST = {
  GENERATION_LEASE_SECONDS: '2',
  GENERATION_SWEEP_SECONDS: '1',
  ORCHESTRATION_SCHEDULER_INTERVAL_MS: '1000',
  ORCHESTRATION_NODE_LEASE_SECONDS: '2',
  TRIGGER_FIRING_LEASE_SECONDS: '2',
  TRIGGER_SCHEDULER_INTERVAL_MS: '1000',
  TASKS_SCHEDULER_INTERVAL_MS: '1000',
  TASKS_DISPATCH_LEASE_SECONDS: '2',
  TASKS_DISPATCH_RECONCILE_GRACE_MS: '1000',
  SHUTDOWN_GRACE_MS: '2000',
  EGRESS_ALLOW_HOSTS: '127.0.0.1',
}

export type TaskApp = TriggerApp

/** Starts an app with an agent, a tool and task workers. */
export const startTaskApp = ({ env, ...more }: Parameters<typeof startTriggerApp>[0] = {}): Promise<TaskApp> =>
  startTriggerApp({
    workers: ['orchestration', 'generation', 'trigger', 'delivery'],
    actions: ACTIONS,
    env: { ...FAST, ...env },
    ...more,
  })

let counter = 0

export async function ok(reply: Reply | Promise<Reply>, status = 200): Promise<any> {
  const { status: got, body } = await reply
  assert.equal(got, status, JSON.stringify(body))
  return body
}

export const refusal = async (reply: Promise<Reply>): Promise<[number, string]> => {
  const { status, body } = await reply
  return [status, body?.error?.code]
}

export const workflow = (key: Client, fields: object): Promise<any> =>
  ok(key.post('/workflows', { name: `workflow ${++counter}`, ...fields }), 201)

export const task = (key: Client, workflow_id: string, fields: object = {}): Promise<any> =>
  ok(key.post('/tasks', { workflow_id, title: 'a card', ...fields }), 201)

export const move = (key: Client, id: string, transition: string, more: object = {}): Promise<Reply> =>
  key.post(`/tasks/${id}/transitions`, { transition, ...more })

export const read = (key: Client, id: string): Promise<any> => ok(key.get(`/tasks/${id}`))

/** Waits until a task meets a condition. */
export const until = (key: Client, id: string, holds: (task: any) => boolean, within?: number): Promise<any> =>
  eventually(
    async () => {
      const found = await read(key, id)
      return holds(found) ? found : null
    },
    { what: `${id} ${holds}`, ...(within ? { within } : {}) },
  )

export const historyOf = async (key: Client, id: string): Promise<any[]> =>
  (await ok(key.get(`/tasks/${id}/history?limit=100`))).data

/** Lists the events of a task, oldest first. */
export const eventsOf = async (key: Client, id: string): Promise<any[]> =>
  (await ok(key.get(`/events?resource_id=${id}&limit=100`))).data.reverse()

export const namesOf = async (key: Client, id: string): Promise<string[]> =>
  (await eventsOf(key, id)).map(({ event }) => event.replace('tasks.', ''))
