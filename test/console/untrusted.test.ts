import assert from 'node:assert/strict'
import { isCostlyMarkdown, visible } from '../../console/src/components/untrusted.ts'

describe('texts of tenants in the console', () => {
  it('show characters that are not drawn or change the direction', () => {
    const hidden = ['\u0000', '\u0085', '\u00ad', '\u180e', '\u200b', '\u202e', '\u2028', '\u3164', '\u{e0041}']
    for (const character of hidden)
      assert.match(visible(`a${character}b`), /^a⟨U\+[0-9A-F]{4,5}⟩b$/, character.codePointAt(0)?.toString(16))
    assert.equal(visible('\u{e0041}'), '⟨U+E0041⟩')
    for (const text of ['a\tb\r\nc', 'é 中 \u05d0', '\u2764\ufe0f']) assert.equal(visible(text), text)
  })

  it('are not parsed as Markdown where that could block the page', () => {
    for (const text of [
      '>'.repeat(5000),
      `text\n${'- '.repeat(1000)}`,
      '> 1. '.repeat(10),
      Array.from({ length: 500 }, (_, level) => `${'  '.repeat(level)}- a`).join('\n'),
      Array.from({ length: 50 }, (_, level) => `${'\t'.repeat(level)}* a`).join('\n'),
      '![a]('.repeat(10_000),
      `${'a|'.repeat(1300)}\n${'-|'.repeat(1300)}\n${'a\n'.repeat(1300)}`,
      `> ${'a|'.repeat(1300)}\r> ${':-:|'.repeat(1300)}\r${'> a\r'.repeat(1300)}`,
      `1. ${'|'.repeat(1300)}\n   ${'|-'.repeat(1299)}|\n${'   a\n'.repeat(1300)}`,
    ])
      assert.equal(isCostlyMarkdown(text), true, text.slice(0, 20))
    const TABLE = `| a | b |\n| --- | --- |\n${'| 1 | 2 |\n'.repeat(2000)}`
    for (const text of [
      '> > a\n- b\n  - c',
      '-'.repeat(80),
      `${' '.repeat(60)}code`,
      '| --- | --- |\n'.repeat(100),
      TABLE,
    ])
      assert.equal(isCostlyMarkdown(text), false, text.slice(0, 20))
    const start = performance.now()
    for (const text of [
      ' '.repeat(30_000),
      '-|'.repeat(15_000),
      '-|\n'.repeat(10_000),
      '>\n'.repeat(15_000),
      '\t'.repeat(30_000),
    ])
      isCostlyMarkdown(text)
    assert.ok(performance.now() - start < 1000)
  })
})
