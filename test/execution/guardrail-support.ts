import assert from 'node:assert/strict'
import type { Client } from '../support/app.ts'

/** Makes a guardrail and answers its record. */
export async function guardrail(key: Client, document: object, more: object = {}): Promise<any> {
  const reply = await key.post('/guardrails', { name: 'rule', document, ...more })
  assert.equal(reply.status, 201, JSON.stringify(reply.body))
  return reply.body
}

/** What a guardrail would say of a call. */
export async function tried(key: Client, id: string, body: object): Promise<any> {
  const reply = await key.post(`/guardrails/${id}/evaluate`, body)
  assert.equal(reply.status, 200, JSON.stringify(reply.body))
  return reply.body
}

/** The class, the decision and the guard's result of a record. */
export const said = (record: any) => [record.class, record.decision, record.guard_result]
