import assert from 'node:assert/strict'
import { truncateBytes, truncateChars } from '#core/base/storable-text.ts'

describe('a text that is cut', () => {
  it('keeps the characters that are whole within its first bytes', () => {
    for (const text of ['äöü', Buffer.from('äöü')]) {
      assert.deepEqual(
        [1, 2, 3, 4, 5, 6, 7].map(bytes => truncateBytes(text, bytes)),
        ['', 'ä', 'ä', 'äö', 'äö', 'äöü', 'äöü'],
      )
    }
    assert.equal(truncateBytes('a😀', 4), 'a')
    assert.equal(truncateBytes('a😀', 5), 'a😀')
    assert.equal(truncateBytes(Buffer.from([0x61, 0xe2, 0x28, 0x62]), 3), 'a\ufffd(')
  })

  it('keeps the characters that are whole within its first code units', () => {
    assert.deepEqual(
      [1, 2, 3, 4, 5].map(length => truncateChars('a😀b', length)),
      ['a', 'a', 'a😀', 'a😀b', 'a😀b'],
    )
  })
})
