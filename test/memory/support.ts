import assert from 'node:assert/strict'
import type { Client, TestApp } from '../support/app.ts'
import { type EmbeddingServer, startEmbeddingServer, vectorOf } from '../support/embedding-server.ts'
import { createdBy } from '../support/replies.ts'

export const DIMENSIONS = 64

export const remote = (server: EmbeddingServer, more: Record<string, string> = {}) => ({
  EMBEDDING_PROVIDER: 'openai',
  EMBEDDING_MODEL: 'm',
  EMBEDDING_DIMENSIONS: String(server.dimensions),
  EMBEDDING_BASE_URL: server.url,
  ...more,
})

/** A text whose vector has an angle, in degrees, to the vector of the same topic at 0: their cosine is the cosine of the angle. */
export const at = (degrees: number, topic: string): string => `${topic} at ${degrees} degrees`

/** A server whose vectors of `at` texts are at their angles; vectors of other texts are orthogonal. */
export async function startAngles(): Promise<EmbeddingServer> {
  const server = await startEmbeddingServer(DIMENSIONS)
  server.behave = ({ texts }) => ({ vectors: texts.map(angled) })
  return server
}

function angled(text: string): number[] {
  const [, topic, degrees] = /^(.*) at (-?[\d.]+) degrees/.exec(text) ?? []
  if (degrees === undefined) return vectorOf(text, DIMENSIONS)
  const along = vectorOf(topic, DIMENSIONS)
  const random = vectorOf(`beside ${topic}`, DIMENSIONS)
  const dot = along.reduce((sum, value, index) => sum + value * random[index], 0)
  const beside = random.map((value, index) => value - dot * along[index])
  const length = Math.hypot(...beside)
  const angle = (Number(degrees) * Math.PI) / 180
  return along.map((value, index) => Math.cos(angle) * value + (Math.sin(angle) * beside[index]) / length)
}

export async function createStore(key: Client, more: object = {}): Promise<string> {
  return (await createdBy(key, '/memory-stores', { name: 'Facts', ...more })).id
}

/** States a fact and returns the entry. */
export async function state(key: Client, memory_store_id: string, content: string, more: object = {}) {
  const { status, body } = await key.post('/memory-entries', { memory_store_id, content, ...more })
  assert.ok(status === 201 || status === 200, JSON.stringify(body))
  assert.equal(status, body.action === 'created' ? 201 : 200)
  return body
}

export const memoriesOf = async (key: Client, store: string, query = '') =>
  (await key.get(`/memories?memory_store_id=${store}${query}`)).body.data as any[]

export const entriesOf = async (key: Client, store: string, query = '') =>
  (await key.get(`/memory-entries?memory_store_id=${store}&limit=100${query}`)).body.data as any[]

/** The names of events about a resource, oldest first. */
export const eventsOf = async (app: TestApp, id: string): Promise<string[]> =>
  (await app.admin.get(`/events?resource_id=${id}&limit=100`)).body.data
    .map(({ event }: { event: string }) => event)
    .reverse()
