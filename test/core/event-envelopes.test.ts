import assert from 'node:assert/strict'
import { newId } from '#core/base/ids.ts'
import { compressEnvelope, readEnvelope } from '#core/writes/event-envelopes.ts'

describe('envelopes of events', () => {
  const ids = {
    id: newId('evt'),
    project_id: newId('proj'),
    resource_id: newId('gen'),
    created_at: '2026-11-29T12:00:00Z',
  }
  const envelopeOf = (content: string) =>
    JSON.stringify({ id: ids.id, event: 'generations.completed', project_id: ids.project_id, data: { content } })
  const compressed = (envelope: string) => compressEnvelope({ ...ids, envelope }) as Buffer

  it('are read as they were written, whatever their length', () => {
    for (const content of [
      'é🙂\u0000"\\'.repeat(40),
      ...[3000, 4000, 4100, 8200, 20_000, 60_000].map(length =>
        Array.from({ length: length / 5 }, (_, n) => ((n * 7919) % 9973).toString(36).padStart(4, '0')).join(' '),
      ),
    ]) {
      const envelope = envelopeOf(content)
      const packed = compressed(envelope)
      assert.ok(packed.length < Buffer.byteLength(envelope))
      assert.equal(readEnvelope({ ...ids, envelope: null, packed }), envelope)
    }
    assert.equal(compressEnvelope({ ...ids, envelope: envelopeOf('') }), null)
    assert.equal(compressEnvelope({ ...ids, envelope: envelopeOf('x'.repeat(65_536)) }), null)
  })
})
