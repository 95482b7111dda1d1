import assert from 'node:assert/strict'
import type { Client, Reply } from './app.ts'

type Poster = Pick<Client, 'post'>

/** Creates a record by a POST that must be answered by `status`, and returns the record. */
export async function createdBy(caller: Poster, path: string, body?: object, status = 201): Promise<any> {
  const reply = await caller.post(path, body)
  assert.equal(reply.status, status, `${path} ${JSON.stringify(reply.body)}`)
  return reply.body
}

/** Returns the body of the answer to a POST that must succeed. */
export async function postedBy(caller: Poster, path: string, body?: object): Promise<any> {
  const reply = await caller.post(path, body)
  assert.ok(reply.status < 300, `${path} ${reply.status} ${JSON.stringify(reply.body)}`)
  return reply.body
}

/** Status and error code of a refusal. */
export const refusalOf = ({ status, body }: { status: number; body: any }) => [status, body?.error?.code]

/** Error code of a refusal. */
export const codeOf = ({ body }: { body: any }) => body?.error?.code

/** Returns the body of an answer that must be a success. */
export async function bodyOf(reply: Promise<Reply> | Reply): Promise<any> {
  const { status, body } = await reply
  assert.ok(status < 300, JSON.stringify(body))
  return body
}
