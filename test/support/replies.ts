import assert from 'node:assert/strict'
import type { Client } from './app.ts'

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
