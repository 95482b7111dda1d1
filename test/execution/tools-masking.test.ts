import assert from 'node:assert/strict'
import { shownBody } from '../../src/execution/tools/hide.ts'

describe('secrets in what a target answers', () => {
  const secret = 'aB3/xY9+zz=='
  const spellings: [string, string][] = [
    ['JSON of PHP, which escapes slashes', JSON.stringify({ header: `Bearer ${secret}` }).replaceAll('/', '\\/')],
    [
      'an address as .NET writes it',
      `/x?k=${encodeURIComponent(secret).replace(/%[0-9A-F]{2}/g, code => code.toLowerCase())}`,
    ],
    [
      'JSON with characters escaped',
      secret.replaceAll('+', '\\u002b').replaceAll('/', '\\u002F').replaceAll('=', '\\u003d'),
    ],
    ['HTML', secret.replaceAll('+', '&#43;').replaceAll('=', '&#x3D;')],
  ]
  for (const [what, text] of spellings)
    it(`are hidden in ${what}`, () => {
      const shown = shownBody(Buffer.from(text), [secret])
      assert.ok(!shown.includes('aB3') && !shown.includes('xY9'), shown)
    })

  it('are hidden where the answer is cut', () => {
    const long = 'SuperSecretValue0123456789/+='
    const shown = shownBody(Buffer.from(long.repeat(4000)), [long])
    assert.ok(!shown.includes('SuperSecret'), shown.slice(-60))
    assert.ok(shown.includes('***'))
  })

  it('are hidden in addresses and forms also where they are long, such as keys', () => {
    const key = 'private key/+= '.repeat(200)
    for (const text of [encodeURIComponent(key), new URLSearchParams({ key }).toString(), JSON.stringify({ key })])
      assert.ok(!shownBody(Buffer.from(text), [key]).includes('private'), text.slice(0, 60))
  })

  it('leave the rest as it is, and texts that only look alike', () => {
    assert.equal(shownBody(Buffer.from('ab3/xy9+zz== a+b'), [secret]), 'ab3/xy9+zz== a+b')
  })
})
