import assert from 'node:assert/strict'
import type { Client } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'

let count = 0
/** A name that no formation has. */
export const fresh = (): string => `stack ${++count}`

/** The answer of a create whose deploy worked. */
export async function active(key: Client, template: unknown, more: object = {}): Promise<any> {
  const { status, body } = await key.post('/formations', { name: fresh(), template, ...more })
  assert.deepEqual([status, body.status], [201, 'active'], JSON.stringify(body.error ?? body))
  return body
}

export async function updated(key: Client, { id }: { id: string }, body: object): Promise<any> {
  const reply = await key.put(`/formations/${id}`, body)
  assert.equal(reply.status, 200, JSON.stringify(reply.body))
  return reply.body
}

export const physical = (formation: any, logicalId: string): string =>
  formation.resources.find((each: any) => each.logical_id === logicalId && each.status !== 'deleted')
    .physical_resource_id

/** What a plan would do, as pairs of names and actions. */
export async function planned(key: Client, body: object): Promise<[string, string][]> {
  return (await createdBy(key, '/formations/plan', body, 200)).changes.map(({ logical_id, action }: any) => [
    logical_id,
    action,
  ])
}

export const store = (name: string, more: object = {}, properties: object = {}): object => ({
  type: 'memory_store',
  properties: { name, ...properties },
  ...more,
})
