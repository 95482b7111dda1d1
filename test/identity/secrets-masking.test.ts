import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { maskSecrets, maskYielding, valuesForTexts } from '#identity/secrets/mask.ts'
import { processorMs } from '../support/event-loop.ts'

const html = (text: string) =>
  text.replaceAll('&', '&amp;').replaceAll('<', '&lt;').replaceAll('"', '&quot;').replaceAll('+', '&#43;')
const units = (text: string) =>
  [...Array(text.length).keys()].map(at => `\\u${text.charCodeAt(at).toString(16).padStart(4, '0')}`).join('')
const percent = (text: string) => [...Buffer.from(text)].map(byte => `%${byte.toString(16).padStart(2, '0')}`).join('')
const form = (text: string) => new URLSearchParams([['', text]]).toString().slice(1)
const json = (text: string) => JSON.stringify(text).slice(1, -1)

describe('secrets in third-party texts', () => {
  const secrets = [
    'aB3/xY9+zz==',
    'private key/+= \n"&<'.repeat(60),
    'ümläut & 😀 emoji',
    'C:\\new\\table\\u0041',
    '%41%42%43%2541',
    '&#65;&amp;&quot',
    'trailing\\',
  ]
  const spellings: Record<string, (text: string) => string> = {
    'as they are': text => text,
    'in JSON': json,
    'in JSON of PHP, which escapes slashes': text => json(text).replaceAll('/', '\\/'),
    'in JSON as code units': units,
    'in JSON within JSON': text => json(json(text)),
    'in URLs': encodeURIComponent,
    'in URLs with lower case digits': percent,
    'in URLs within URLs': text => encodeURIComponent(encodeURIComponent(text)),
    'in forms': form,
    'in HTML': html,
    'in URLs in JSON in HTML': text => html(json(encodeURIComponent(text))),
    'in a mixture': text =>
      [...text].map((char, at) => [char, percent(char), units(char), `&#${char.codePointAt(0)};`][at % 4]).join(''),
  }
  for (const [name, spell] of Object.entries(spellings))
    it(`are masked ${name}`, () => {
      for (const secret of secrets)
        assert.match(
          maskSecrets(`{"said":"${spell(secret)}"}, and more`, [secret]),
          /^\{"said":"\*\*\*"\}, and more$/,
          secret,
        )
    })

  it('are masked in hex and base64, also as a part of a longer text', () => {
    for (const secret of secrets) {
      const bytes = Buffer.from(secret)
      const encoded = ['', 'u', 'us', 'user:'].map(more => Buffer.concat([Buffer.from(more), bytes, Buffer.from(':x')]))
      const texts = [
        bytes.toString('hex'),
        bytes.toString('hex').toUpperCase(),
        ...encoded.flatMap(each => [each.toString('base64'), each.toString('base64url')]),
        ...encoded.map(each => encodeURIComponent(each.toString('base64'))),
      ]
      for (const text of texts)
        assert.match(maskSecrets(`{"said":"${text}"}`, [secret]), /^\{"said":".{0,8}\*\*\*.{0,10}"\}$/, text)
    }
  })

  it('are masked also where they overlap or touch', () => {
    assert.equal(maskSecrets('<abcdefghijkl>', ['abcdefgh', 'efghijkl']), '<***>')
    assert.equal(maskSecrets('<abcdefghabcdefgh>', ['abcdefgh']), '<***>')
    assert.equal(maskSecrets('<aaaaaaaaaaaaaaaaa>', ['a'.repeat(8)]), '<***>')
  })

  it('are masked when truncated at the end, in every spelling', () => {
    const secret = 'Super/Secret+Value 0123456789'
    for (const [name, spell] of Object.entries(spellings))
      for (let bytes = 20; bytes < 120; bytes++) {
        const shown = maskSecrets(`the value is not ${spell(secret)}${'.'.repeat(200)}`, [secret], bytes)
        assert.match(shown, /^the value is not (\*\*\*\.*)?$/, `${name}, ${bytes} bytes`)
      }
    assert.equal(maskSecrets('x'.repeat(20_000), ['xxxxxxxxy']), `${'x'.repeat(16_376)}***`)
    assert.equal(maskSecrets('-'.repeat(20_000), ['xxxxxxxxy']).length, 16_384)
  })

  it('are not masked if they are short, nor are similar texts', () => {
    assert.equal(maskSecrets('1234567 ABC', ['1234567', '%41%42%43']), '1234567 ABC')
    const text = 'ab3/xy9+zz== a+b %4 %zz \\ \\u12 &#; &nope; &constructor; 😀\\'
    assert.equal(maskSecrets(text, ['aB3/xY9+zz==', '\\\\\\\\\\\\\\\\\\', '']), text)
  })

  it('cost linear time in text and secret', async () => {
    const letters = 'a'.repeat(65_536)
    for (const [text, secret] of [
      [letters, `${'a'.repeat(30_000)}b${'a'.repeat(30_000)}`],
      [`${'a'.repeat(1023)}b`.repeat(64), 'a'.repeat(1024)],
      ['%3'.repeat(32_768), `${'%3'.repeat(30_000)}4`],
      ['\\u00'.repeat(16_384), '\\u00'.repeat(16_000)],
      ['&'.repeat(65_536), `${'&'.repeat(65_000)}#`],
    ]) {
      const ms = await processorMs(() => maskSecrets(text, [secret], 65_536))
      assert.ok(ms < 500, `${ms} ms`)
    }
  })

  it('cost little if there are thousands, and hide a text that has parts of all', async () => {
    const ordinary = [...Array(4000).keys()].map(n => `sk-${createHash('sha256').update(String(n)).digest('base64')}`)
    const prose = 'a model says sk- and much more; '.repeat(256)
    const text = `${prose}${ordinary[7]} ${Buffer.from(ordinary[999]).toString('hex')}`
    let shown = ''
    const ms = await processorMs(() => {
      shown = maskSecrets(text, ordinary)
    })
    assert.equal(shown, `${prose}*** ***`)
    assert.ok(ms < 800, `${ms} ms`)

    const alike = [...Array(1000).keys()].map(n => `${'a'.repeat(1000 + n)}b`)
    const hidden = await processorMs(() => {
      shown = maskSecrets(`${'a'.repeat(16_000)}b`, alike)
    })
    assert.equal(shown, '***')
    assert.ok(hidden < 3000, `${hidden} ms`)
    const budget = { bytes: 2_000_000 }
    const values = valuesForTexts(alike)
    assert.deepEqual(
      [await maskYielding('aaaab', values, budget), await maskYielding('b', values, budget)],
      ['aaaab', '***'],
    )
  })
})
