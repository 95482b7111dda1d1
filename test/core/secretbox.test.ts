import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { createSecretBox, DEVELOPMENT_KEY } from '#core/secrets/secretbox.ts'

const key = randomBytes(32).toString('hex')
const other = randomBytes(32).toString('hex')
const aad = { kind: 'secret', id: 'sec_1', project_id: 'proj_1' }

describe('the secret box', () => {
  const box = createSecretBox({ key, previous: [] })

  it('opens sealed values: text of any script, empty, binary-safe text of a buffer, large', () => {
    for (const value of ['x', '', 'käse 😀\0\n', 'y'.repeat(1_000_000)])
      for (const form of [value, Buffer.from(value)])
        assert.deepEqual(box.open(box.seal(form, aad), aad), { ok: true, value })
  })

  it('stores v1.<key id>.<iv>.<tag>.<ciphertext>, with a fresh IV each time', () => {
    const sealed = box.seal('value', aad)
    const [version, keyId, iv, tag, ciphertext, ...rest] = sealed.split('.')
    assert.deepEqual([version, rest.length], ['v1', 0])
    assert.equal(keyId, createHash('sha256').update(Buffer.from(key, 'hex')).digest('hex').slice(0, 8))
    assert.equal(keyId, box.keyId)
    assert.deepEqual(
      [iv, tag, ciphertext].map(part => Buffer.from(part, 'base64url').length),
      [12, 16, 5],
    )
    assert.notEqual(box.seal('value', aad), sealed)
  })

  it('does not open for another row, kind or project', () => {
    const sealed = box.seal('value', aad)
    for (const change of [{ id: 'sec_2' }, { kind: 'webhook_secret' }, { project_id: 'proj_2' }, { project_id: null }])
      assert.deepEqual(box.open(sealed, { ...aad, ...change }), { ok: false, reason: 'not_authentic' })
  })

  it('does not open when any byte was changed', () => {
    const parts = box.seal('value', aad).split('.')
    for (const part of [2, 3, 4]) {
      const bytes = Buffer.from(parts[part], 'base64url')
      bytes[0] ^= 1
      const altered = parts.with(part, bytes.toString('base64url')).join('.')
      assert.deepEqual(box.open(altered, aad), { ok: false, reason: 'not_authentic' })
    }
  })

  it('recognizes text that is not sealed', () => {
    const sealed = box.seal('value', aad)
    const short = sealed.split('.').with(3, 'AAAA').join('.')
    for (const text of ['', 'value', 'v1.a.b.c.d', sealed.replace('v1', 'v2'), `${sealed}.x`, `${sealed}\n`, short]) {
      assert.deepEqual(box.open(text, aad), { ok: false, reason: 'malformed' })
      assert.equal(box.keyIdOf(text), null)
      assert.equal(box.needsReseal(text), true)
    }
  })

  it('reads under previous keys and writes under the new one', () => {
    const old = createSecretBox({ key: other, previous: [] })
    const sealed = old.seal('value', aad)
    assert.deepEqual(box.open(sealed, aad), { ok: false, reason: 'unknown_key' })
    const rotated = createSecretBox({ key, previous: [other] })
    assert.deepEqual(rotated.open(sealed, aad), { ok: true, value: 'value' })
    assert.equal(rotated.needsReseal(sealed), true)
    assert.equal(rotated.keyIdOf(sealed), old.keyId)
    const resealed = rotated.seal('value', aad)
    assert.equal(rotated.needsReseal(resealed), false)
    assert.deepEqual(box.open(resealed, aad), { ok: true, value: 'value' })
  })

  it('refuses malformed keys without showing them', () => {
    for (const bad of ['', 'x', key.slice(1), `${key}0`, `${key.slice(1)}g`, `${key}\n`]) {
      for (const keys of [{ key: bad }, { key, previous: [bad] }])
        assert.throws(
          () => createSecretBox(keys),
          (error: Error) => /64 hex/.test(error.message) && !error.message.includes(key.slice(1)),
        )
    }
  })

  it('accepts upper case and the development key', () => {
    assert.equal(createSecretBox({ key: key.toUpperCase() }).keyId, box.keyId)
    assert.equal(
      createSecretBox({ key: DEVELOPMENT_KEY }).open(createSecretBox({ key: DEVELOPMENT_KEY }).seal('x', aad), aad).ok,
      true,
    )
  })

  it('recognizes a text by its fingerprint, also under an older key', () => {
    const fingerprint = box.fingerprint('a text')
    assert.ok(!fingerprint.includes(createHash('sha256').update('a text').digest('base64url')))
    assert.equal(box.fingerprint('a text'), fingerprint)
    assert.ok(box.recognises(fingerprint, 'a text'))
    assert.ok(!box.recognises(fingerprint, 'another text'))
    assert.ok(createSecretBox({ key: other, previous: [key] }).recognises(fingerprint, 'a text'))
    assert.ok(!createSecretBox({ key: other }).recognises(fingerprint, 'a text'))
    for (const broken of ['', 'x', `${box.keyId}.`, `${box.keyId}.AAAA`]) assert.ok(!box.recognises(broken, 'a text'))
  })
})
