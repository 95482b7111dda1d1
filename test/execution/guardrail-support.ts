import type { Client } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'

/** Makes a guardrail and answers its record. */
export async function guardrail(key: Client, document: object, more: object = {}): Promise<any> {
  return createdBy(key, '/guardrails', { name: 'rule', document, ...more })
}

/** What a guardrail would say of a call. */
export async function tried(key: Client, id: string, body: object): Promise<any> {
  return createdBy(key, `/guardrails/${id}/evaluate`, body, 200)
}

/** The class, the decision and the guard's result of a record. */
export const said = (record: any) => [record.class, record.decision, record.guard_result]
