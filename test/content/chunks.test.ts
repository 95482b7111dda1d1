import assert from 'node:assert/strict'
import encoding from 'gpt-tokenizer/encoding/o200k_base'
import { effectiveSettings } from '#content/index/chunks/chunk-settings.ts'
import type { ChunkDraft, PageText, PartialSettings } from '#content/index/chunks/model.ts'
import { ChunkLimitError, joinPages, splitPages } from '#content/index/chunks/split.ts'
import { AppError } from '#core/base/errors.ts'
import { loadModules } from '#core/modules/module.ts'
import { modules } from '#modules.ts'
import { longestTurn } from '../support/event-loop.ts'

// Errors are of the catalogue, which modules make.
loadModules(modules)

const text = (content: string): PageText[] => [{ number: null, text: content }]

const LIMITS = { INGESTION_MAX_CHUNKS: 1_000_000, INGESTION_MAX_TEXT_BYTES: 1_000_000_000 }

const split = (pages: PageText[], settings: PartialSettings, title: string | null = null, limits: object = {}) =>
  splitPages(pages, effectiveSettings(settings), { title, limits: { ...LIMITS, ...limits } })

const spans = (chunks: ChunkDraft[]) => chunks.map(chunk => [chunk.char_start, chunk.char_end])

const contents = (chunks: ChunkDraft[]) => chunks.map(chunk => chunk.content)

const tokens = (content: string) => encoding.encode(content, { disallowedSpecial: new Set() }).length

describe('chunk settings', () => {
  const refused = (settings: PartialSettings[]) =>
    assert.throws(
      () => effectiveSettings(...settings),
      (error: unknown) => {
        assert(error instanceof AppError)
        assert.equal(error.code, 'VALIDATION_FAILED')
        assert.equal((error.meta as any).problems[0].path, 'chunk_overlap')
        return true
      },
    )

  it('have no unit, size and overlap unless the strategy takes them', () => {
    for (const chunk_strategy of ['page', 'whole'] as const) {
      assert.deepEqual(effectiveSettings({ chunk_strategy, chunk_unit: 'tokens', chunk_size: 5, chunk_overlap: 7 }), {
        chunk_strategy,
        chunk_unit: null,
        chunk_size: null,
        chunk_overlap: null,
      })
    }
  })

  it('have defaults for each strategy and unit', () => {
    const numbers = (settings: PartialSettings) => {
      const { chunk_unit, chunk_size, chunk_overlap } = effectiveSettings(settings)
      return [chunk_unit, chunk_size, chunk_overlap]
    }
    assert.deepEqual(numbers({ chunk_strategy: 'size' }), ['characters', 1000, 200])
    assert.deepEqual(numbers({ chunk_strategy: 'size', chunk_unit: 'tokens' }), ['tokens', 256, 32])
    assert.deepEqual(numbers({ chunk_strategy: 'auto' }), ['characters', 1200, 0])
    assert.deepEqual(numbers({ chunk_strategy: 'auto', chunk_unit: 'tokens' }), ['tokens', 300, 0])
  })

  it('take each field from the first part that says something about it', () => {
    assert.deepEqual(
      effectiveSettings(
        { chunk_size: 50 },
        null,
        undefined,
        { chunk_strategy: null, chunk_overlap: 10 },
        { chunk_strategy: 'size', chunk_unit: 'characters', chunk_size: 700, chunk_overlap: 20 },
        { chunk_strategy: 'page' },
      ),
      { chunk_strategy: 'size', chunk_unit: 'characters', chunk_size: 50, chunk_overlap: 10 },
    )
    assert.equal(effectiveSettings(null, { chunk_strategy: 'page' }).chunk_strategy, 'page')
  })

  it('pass over numbers that were said about another strategy or unit', () => {
    const stored: PartialSettings = {
      chunk_strategy: 'size',
      chunk_unit: 'characters',
      chunk_size: 700,
      chunk_overlap: 70,
    }
    assert.deepEqual(effectiveSettings({ chunk_strategy: 'auto' }, stored), {
      chunk_strategy: 'auto',
      chunk_unit: 'characters',
      chunk_size: 1200,
      chunk_overlap: 0,
    })
    assert.deepEqual(effectiveSettings({ chunk_unit: 'tokens' }, stored), {
      chunk_strategy: 'size',
      chunk_unit: 'tokens',
      chunk_size: 256,
      chunk_overlap: 32,
    })
  })

  it('refuse an overlap that is not smaller than the size', () => {
    refused([{ chunk_strategy: 'size', chunk_size: 100, chunk_overlap: 100 }])
    refused([{ chunk_strategy: 'auto', chunk_overlap: 1200 }])
    refused([{ chunk_size: 100 }, { chunk_strategy: 'size', chunk_overlap: 200 }])
    refused([{ chunk_overlap: 1000 }, { chunk_strategy: 'size', chunk_size: 1000 }])
  })

  it('let a default overlap give way to a small size', () => {
    assert.equal(effectiveSettings({ chunk_strategy: 'size', chunk_size: 201 }).chunk_overlap, 200)
    assert.equal(effectiveSettings({ chunk_strategy: 'size', chunk_size: 200 }).chunk_overlap, 40)
    assert.equal(effectiveSettings({ chunk_strategy: 'size', chunk_size: 1 }).chunk_overlap, 0)
  })
})

describe('chunks by page, whole and by size', () => {
  const pages: PageText[] = [
    { number: 2, text: 'é😀' },
    { number: 5, text: 'zwei' },
  ]

  it('are one a page with its number and its place in the joined text', async () => {
    const chunks = await split(pages, { chunk_strategy: 'page' })
    assert.deepEqual(chunks, [
      { chunk_index: 0, page_number: 2, char_start: 0, char_end: 2, content: 'é😀', context: null },
      { chunk_index: 1, page_number: 5, char_start: 3, char_end: 7, content: 'zwei', context: null },
    ])
  })

  it('leave pages of whitespace out and keep the places of the others', async () => {
    const chunks = await split([pages[0], { number: 3, text: ' \n ' }, pages[1]], { chunk_strategy: 'page' })
    assert.deepEqual(spans(chunks), [
      [0, 2],
      [7, 11],
    ])
    assert.deepEqual(
      chunks.map(chunk => chunk.chunk_index),
      [0, 1],
    )
  })

  it('are one for a source without pages', async () => {
    for (const chunk_strategy of ['page', 'whole'] as const) {
      const chunks = await split(text(' alpha\nbeta '), { chunk_strategy })
      assert.deepEqual(chunks, [
        { chunk_index: 0, page_number: null, char_start: 0, char_end: 12, content: ' alpha\nbeta ', context: null },
      ])
    }
  })

  it('are the pages joined by line breaks, without a page, when the text stays whole', async () => {
    const chunks = await split(pages, { chunk_strategy: 'whole' })
    assert.deepEqual(contents(chunks), ['é😀\nzwei'])
    assert.equal(chunks[0].page_number, null)
    assert.equal(chunks[0].char_end, 7)
  })

  it('are windows of the size, and the last is the first that reaches the end', async () => {
    const long = text('x'.repeat(2500))
    assert.deepEqual(spans(await split(long, { chunk_strategy: 'size', chunk_overlap: 0 })), [
      [0, 1000],
      [1000, 2000],
      [2000, 2500],
    ])
    assert.deepEqual(spans(await split(long, { chunk_strategy: 'size' })), [
      [0, 1000],
      [800, 1800],
      [1600, 2500],
    ])
    assert.deepEqual(spans(await split(text('x'.repeat(1800)), { chunk_strategy: 'size' })), [
      [0, 1000],
      [800, 1800],
    ])
    assert.deepEqual(spans(await split(text('x'), { chunk_strategy: 'size' })), [[0, 1]])
  })

  it('count code points, across pages, and name none', async () => {
    const chunks = await split(pages, { chunk_strategy: 'size', chunk_size: 3, chunk_overlap: 1 })
    assert.deepEqual(contents(chunks), ['é😀\n', '\nzw', 'wei'])
    assert(chunks.every(chunk => chunk.page_number === null))
  })

  it('count tokens of o200k_base when configured', async () => {
    const words = 'The quick brown fox jumps over the lazy dog. '.repeat(40).trim()
    const chunks = await split(text(words), {
      chunk_strategy: 'size',
      chunk_unit: 'tokens',
      chunk_size: 50,
      chunk_overlap: 10,
    })
    assert.deepEqual(
      chunks.slice(0, -1).map(chunk => tokens(chunk.content)),
      chunks.slice(0, -1).map(() => 50),
    )
    assert.equal(chunks.length, Math.ceil((tokens(words) - 10) / 40))
    const overlaps = chunks.slice(1).map((chunk, at) => chunks[at].char_end - chunk.char_start)
    assert(overlaps.every((length, at) => tokens(words.slice(chunks[at + 1].char_start).slice(0, length)) === 10))
  })

  it('take marks of models in a text for text', async () => {
    const chunks = await split(text('a <|endoftext|> b'), { chunk_strategy: 'size', chunk_unit: 'tokens' })
    assert.deepEqual(contents(chunks), ['a <|endoftext|> b'])
  })

  it('do not exist for a text of nothing but whitespace', async () => {
    for (const chunk_strategy of ['page', 'whole', 'size', 'auto'] as const) {
      assert.deepEqual(await split(text(' \r\n\t\u00a0'), { chunk_strategy }), [])
      assert.deepEqual(await split(text(''), { chunk_strategy }), [])
      assert.deepEqual(await split([], { chunk_strategy }), [])
    }
  })

  it('are not more than a document may have', async () => {
    const settings: PartialSettings = { chunk_strategy: 'size', chunk_size: 10, chunk_overlap: 0 }
    const five = { INGESTION_MAX_CHUNKS: 5 }
    assert.equal((await split(text('x'.repeat(50)), settings, null, five)).length, 5)
    await assert.rejects(split(text('x'.repeat(51)), settings, null, five), (error: Error) => {
      assert.ok(error instanceof ChunkLimitError)
      return /5 chunks \(INGESTION_MAX_CHUNKS\)/.test(error.message)
    })
  })

  it('do not hold more than twice the text that a document may have, in bytes', async () => {
    // 1001 windows of 1000 two-byte characters, each one character further.
    const repeated = { chunk_strategy: 'size', chunk_size: 1000, chunk_overlap: 999 } as const
    const file = text('é'.repeat(2000))
    const exact = { INGESTION_MAX_TEXT_BYTES: 1_001_000 }
    assert.equal((await split(file, repeated, null, exact)).length, 1001)
    await assert.rejects(split(file, repeated, null, { INGESTION_MAX_TEXT_BYTES: 1_000_999 }), (error: Error) => {
      assert.ok(error instanceof ChunkLimitError)
      return /2001998 bytes of text \(twice INGESTION_MAX_TEXT_BYTES\)/.test(error.message)
    })
  })

  it('are abandoned before they fill the memory', async () => {
    const widest = { chunk_strategy: 'size', chunk_size: 100_000, chunk_overlap: 99_999 } as const
    const before = process.threadCpuUsage()
    await assert.rejects(
      split(text('x'.repeat(50_000_000)), widest, null, { INGESTION_MAX_TEXT_BYTES: 52_428_800 }),
      ChunkLimitError,
    )
    const { user, system } = process.threadCpuUsage(before)
    assert.ok(user + system < 5_000_000)
  })

  describe('leave the process to its other work while they are cut', () => {
    const LONGEST_MS = 200

    /** The shortest of three measurements: the compiler may come in between, though not each time. */
    const longest = async (content: string, settings: PartialSettings) => {
      let least = Number.POSITIVE_INFINITY
      for (let tries = 0; tries < 3 && least >= LONGEST_MS; tries++)
        least = Math.min(least, await longestOnce(content, settings))
      return least
    }
    const longestOnce = async (content: string, settings: PartialSettings) => {
      await split(text('x'), { chunk_strategy: 'size', chunk_unit: 'tokens' })
      const pages = text(content)
      return longestTurn(() => split(pages, settings))
    }
    const random = <T>(length: number, one: (at: number) => T) =>
      Array.from({ length }, (_, at) => one((Math.imul(at + 1, 2654435761) >>> 0) % 9973)).join('')

    const LINES = 2_500_000
    const SHAPES: Record<string, string> = {
      'short lines': 'a\n'.repeat(LINES),
      'a list': '- a\n'.repeat(LINES / 2),
      'a table': '|a|\n'.repeat(LINES / 2),
      'a fence': `\`\`\`\n${'a\n'.repeat(LINES)}`,
      'a fence of empty lines': `\`\`\`\n${'\n'.repeat(LINES)}x`,
      sentences: 'Ein Satz. '.repeat(LINES / 5),
    }
    for (const [name, content] of Object.entries(SHAPES)) {
      it(`when it is ${name} of up to 5 MB`, async () => {
        const turn = await longest(content, { chunk_strategy: 'auto', chunk_size: 5000 })
        assert(turn < LONGEST_MS, `${turn} ms`)
      })
    }

    const letters = random(800_000, n => String.fromCharCode(97 + (n % 26)))
    const blanks = random(2_000_000, n => ' \n\t\r\u00a0\u2003'[n % 6])
    for (const chunk_strategy of ['size', 'auto'] as const) {
      for (const [name, content] of Object.entries({ 'a long word': letters, 'a long blank': `x${blanks}x` })) {
        it(`when ${name} is measured in tokens (${chunk_strategy})`, async () => {
          const turn = await longest(content, { chunk_strategy, chunk_unit: 'tokens', chunk_size: 100_000 })
          assert(turn < LONGEST_MS, `${turn} ms`)
        })
      }
    }
  })

  it('hold all of a text that is one word of millions of tokens', async () => {
    const settings = { chunk_strategy: 'size', chunk_unit: 'tokens', chunk_size: 1000, chunk_overlap: 0 } as const
    for (const word of ['漢字'.repeat(700_000), '\u0301'.repeat(5_000_000), '😀'.repeat(1_000_000)]) {
      assert(contents(await split(text(word), settings)).join('') === word)
    }
  })

  it('have the same tokens wherever they lie in a text', async () => {
    const word = "The fox didn't jump over 12345 dogs.  It's true that they've read.\n\n"
    const settings = { chunk_strategy: 'size', chunk_unit: 'tokens', chunk_overlap: 0 } as const
    const content = word.repeat(10_000)
    assert.equal((await split(text(content), { ...settings, chunk_size: 1 })).length, tokens(content))
  })
})

describe('chunks by structure', () => {
  const auto = (content: string, chunk_size: number, chunk_overlap?: number, title: string | null = null) =>
    split(text(content), { chunk_strategy: 'auto', chunk_size, chunk_overlap }, title)

  it('hold as many paragraphs as fit', async () => {
    const content = 'one two.\n\nthree four.\n\n\nfive six.\n'
    assert.deepEqual(contents(await auto(content, 21)), ['one two.\n\nthree four.', 'five six.'])
    assert.deepEqual(contents(await auto(content, 20)), ['one two.', 'three four.', 'five six.'])
    assert.deepEqual(contents(await auto(content, 1200)), ['one two.\n\nthree four.\n\n\nfive six.'])
  })

  it('begin with a section that does not fit after the preceding text', async () => {
    const content = '# A\n\nfirst text.\n\n## B\n\nsecond.\n\nthird one.\n\n## C\n\nfourth.'
    assert.deepEqual(contents(await auto(content, 36)), [
      '# A\n\nfirst text.',
      '## B\n\nsecond.\n\nthird one.',
      '## C\n\nfourth.',
    ])
  })

  it('never leave a heading at their end', async () => {
    const content = `Intro.\n\n# Long\n## Deep\n\n${'word '.repeat(30)}`
    const chunks = await auto(content, 40)
    assert.equal(chunks[0].content, 'Intro.')
    assert(chunks[1].content.startsWith('# Long\n## Deep\n\nword word'))
    assert(chunks.every(chunk => !/#[^\n]*$/.test(chunk.content)))
  })

  it('carry the title and the headings that apply to all of their text', async () => {
    const content = [
      'Preface.',
      '# Guide #',
      `Start here. ${'x'.repeat(40)}`,
      '## Install',
      `Do this. ${'x'.repeat(40)}`,
      'Old\n---',
      'a.',
      '### Linux',
      'b.',
      'Other\n=====',
      `End. ${'x'.repeat(40)}`,
    ].join('\n\n')
    const chunks = await auto(content, 70, 0, 'Manual')
    assert.deepEqual(
      chunks.map(chunk => [chunk.content.split(/\s/).find(word => /\w/.test(word)), chunk.context]),
      [
        ['Preface.', 'Manual'],
        ['Guide', 'Manual > Guide'],
        ['Install', 'Manual > Guide > Install'],
        ['Old', 'Manual > Guide > Old'],
        ['Other', 'Manual > Other'],
      ],
    )
    assert.equal((await auto('Preface.', 70))[0].context, null)
    assert.equal((await auto('# Guide\n\nText.', 70))[0].context, 'Guide')
  })

  it('take no `#` in a fence or without a space for a heading', async () => {
    const chunks = await auto('#1 of many\n\n```sh\n# comment\n```\n\n#tag', 1200, 0, 'T')
    assert.equal(chunks[0].context, 'T')
  })

  it('cut a long paragraph between sentences, also where its lines are wrapped', async () => {
    const content = 'A first sentence that is\nwrapped. The second one\nfollows, e.g. here. And a third.'
    assert.deepEqual(contents(await auto(content, 60)), [
      'A first sentence that is\nwrapped.',
      'The second one\nfollows, e.g. here. And a third.',
    ])
  })

  it('cut a long sentence between words and a long word anywhere', async () => {
    assert.deepEqual(contents(await auto('alpha beta gamma delta', 12)), ['alpha beta', 'gamma delta'])
    assert.deepEqual(contents(await auto('abcdefghij', 4)), ['abcd', 'efgh', 'ij'])
    assert.deepEqual(contents(await auto('😀😀😀', 2)), ['😀😀', '😀'])
  })

  it('cut text without spaces at its full stops', async () => {
    const sentence = '这是一个没有空格的句子。'
    assert.deepEqual(contents(await auto(sentence.repeat(4), sentence.length * 2 + 3)), [
      sentence.repeat(2),
      sentence.repeat(2),
    ])
  })

  it('begin after full stops, and keep the bracket that opens a sentence', async () => {
    const content = '句点で文が終わります。「括弧の中にも文がある。」と言った。'
    assert.deepEqual(contents(await auto(content, 18)), [
      '句点で文が終わります。',
      '「括弧の中にも文がある。」と言った。',
    ])
  })

  it('cut scripts without spaces between words, whatever space there is further back', async () => {
    const words = ['ไทย: ', 'จังหวัด', 'เชียงใหม่', 'ตั้ง', 'อยู่', 'ทาง', 'ภาค', 'เหนือ']
    assert.deepEqual(contents(await auto(words.join(''), 26)), [words.slice(0, 4).join(''), words.slice(4).join('')])
    assert.deepEqual(contents(await auto('首都: 日本語の単語の間に空白はありません', 14)), [
      '首都: 日本語の単語の間に',
      '空白はありません',
    ])
  })

  it('never cut a visible character, if it fits', async () => {
    const seen = {
      ZWJ: '👩‍👩‍👧‍👦',
      flag: '🇩🇪',
      skin: '👍🏽',
      marks: 'e\u0323\u0301',
      syllable: 'ક્ષ',
      jamo: '각'.normalize('NFD'),
    }
    for (const [name, character] of Object.entries(seen)) {
      for (const settings of [
        { chunk_size: 8 },
        { chunk_size: 23, chunk_unit: 'tokens' },
      ] satisfies PartialSettings[]) {
        const chunks = contents(await split(text(character.repeat(60)), { chunk_strategy: 'auto', ...settings }))
        assert(chunks.length > 1, name)
        for (const chunk of chunks) assert.equal(chunk.replaceAll(character, ''), '', name)
      }
    }
    assert.equal(contents(await auto('👩‍👩‍👧‍👦', 3)).join(''), '👩‍👩‍👧‍👦')
  })

  it('cut lists at the ends of entries, with the lines indented below them', async () => {
    const entry = (n: number) => `2026-11-22T10:0${n}:01Z INFO order ${4000 + n} was created. Next is due`
    const trace =
      'java.lang.IllegalStateException: Timed out. Giving up.\n\tat shop.Pay.charge(Pay.java:42)\n\tat shop.Main(1)'
    const log = [entry(1), entry(2), trace, entry(3), entry(4)]
    assert.deepEqual(contents(await auto(log.join('\n'), 200)), [
      log.slice(0, 2).join('\n'),
      log.slice(2, 4).join('\n'),
      log[4],
    ])
    const wide = Array.from({ length: 4 }, (_, at) =>
      `order ${at} has been created. It holds ${'one part, '.repeat(12)}`.trim(),
    )
    assert.deepEqual(contents(await auto(wide.join('\n'), 400)), [
      wide.slice(0, 2).join('\n'),
      wide.slice(2).join('\n'),
    ])
    const rows = Array.from({ length: 9 }, (_, at) => `${at},"Pump EX-${at}",${at}.50,in stock`)
    assert.deepEqual(contents(await auto(rows.join('\r\n'), 105)), [
      rows.slice(0, 3).join('\r\n'),
      rows.slice(3, 6).join('\r\n'),
      rows.slice(6).join('\r\n'),
    ])
    const item = (n: number) => `    {\n      "id": ${n},\n      "note": "Works. Fine. Really!"\n    }`
    assert.deepEqual(contents(await auto(`[\n${item(1)},\n${item(2)},\n${item(3)}\n]`, 150)), [
      `[\n${item(1)},\n${item(2)},`,
      `${item(3)}\n]`,
    ])
  })

  it('take wrapped lines for no entries, though nouns have capitals', async () => {
    const content =
      'Die Pumpe wird mit dem grünen Knopf gestartet. Vor dem Öffnen des\nGehäuses ist der Hauptschalter auszuschalten und gegen das\nWiedereinschalten zu sichern. Das Manometer muss 0 bar anzeigen, bevor\nSchrauben gelöst werden dürfen.'
    const end = content.indexOf(' Das Manometer')
    assert.deepEqual(contents(await auto(content, 200)), [content.slice(0, end), content.slice(end + 1)])
  })

  it('cut code where it is indented least', async () => {
    const part = (name: string) => `function ${name}() {\n  if (a) {\n    b()\n  }\n  return 1\n}\n`
    assert.deepEqual(contents(await auto(`\`\`\`js\n${part('one')}\n${part('two')}\n${part('three')}\`\`\``, 130)), [
      `\`\`\`js\n${part('one')}\n${part('two').trimEnd()}`,
      `${part('three')}\`\`\``,
    ])
  })

  it('name the columns of a table above the rows that are cut off its head', async () => {
    const head = '| Code | Was `x` heißt |\n|------|:---:|'
    const rows = Array.from({ length: 6 }, (_, at) => `| E0${at} | heißt ${at} |`)
    const chunks = await auto(`# Codes\n\n${head}\n${rows.join('\n')}\n\nDanach.`, 80)
    assert.deepEqual(
      chunks.map(chunk => [chunk.content, chunk.context]),
      [
        [`# Codes\n\n${head}\n${rows[0]}`, 'Codes'],
        [rows.slice(1, 5).join('\n'), 'Codes > Code | Was `x` heißt'],
        [`${rows[5]}\n\nDanach.`, 'Codes > Code | Was `x` heißt'],
      ],
    )
    assert.equal((await auto(`${head}\n${rows.join('\n')}`, 80))[0].context, null)
    const bare = await auto(rows.join('\n'), 40)
    assert.equal(bare[1].context, null)
  })

  it('keep a fence whole that fits, and cut a larger one at its lines', async () => {
    const fence = '```js\nlet a = 1\n\n# not a heading\n\n- no item. No sentence.\n```'
    const content = `Some words before it.\n\n${fence}\n\nSome words behind it.`
    assert.deepEqual(contents(await auto(content, fence.length)), [
      'Some words before it.',
      fence,
      'Some words behind it.',
    ])
    const long = `~~~\n${Array.from({ length: 20 }, (_, line) => `  line ${line}. Next`).join('\n')}\n~~~`
    const chunks = await auto(long, 60)
    assert(chunks.length > 4)
    assert(chunks.slice(1).every(chunk => /^( {2}line \d+\. Next(\n|$))+(~~~)?$/.test(chunk.content)))
  })

  it('keep a fence whole that fits, though not with its heading', async () => {
    const fence = `\`\`\`\n${'code line\n'.repeat(5)}\`\`\``
    assert.deepEqual(contents(await auto(`# Example\n\n${fence}`, fence.length + 3)), ['# Example', fence])
  })

  it('close a fence with its own kind only, and leave an open one open to the end', async () => {
    const fence = '````\n```\n~~~~\n````'
    assert.deepEqual(contents(await auto(`${fence}\n\nafter.`, fence.length)), [fence, 'after.'])
    const open = '```\na\n\n# b\n\nc'
    assert.deepEqual(contents(await auto(`before.\n\n${open}`, open.length)), ['before.', open])
  })

  it('keep lists and tables whole that fit, and cut larger lists between outer items, tables between rows', async () => {
    const list = '- one\n  more of one\n\n  - nested\n- two\n- three'
    assert.deepEqual(contents(await auto(`Words in front.\n\n${list}\n\nbehind.`, list.length)), [
      'Words in front.',
      list,
      'behind.',
    ])
    assert.deepEqual(contents(await auto(list, 38)), ['- one\n  more of one\n\n  - nested', '- two\n- three'])
    const table = 'a | b\n--|--\n1. A | 2\n3. B | 4'
    assert.deepEqual(contents(await auto(`Words in front.\n${table}\n\nbehind.`, table.length)), [
      'Words in front.',
      table,
      'behind.',
    ])
    assert.deepEqual(contents(await auto(table, 22)), ['a | b\n--|--\n1. A | 2', '3. B | 4'])
  })

  it('read lines that end with CR LF', async () => {
    const content = '# A\r\n\r\nfirst text.\r\n\r\n## B\r\n\r\n- x\r\n- y\r\n'
    const chunks = await auto(content, 24)
    assert.deepEqual(contents(chunks), ['# A\r\n\r\nfirst text.', '## B\r\n\r\n- x\r\n- y'])
    assert.equal(chunks[1].context, 'A > B')
  })

  it('begin with the last whole sentences of the one before when an overlap is given', async () => {
    const content = 'First is here. Second is here. Third is here. Fourth is here. Fifth is here.'
    assert.deepEqual(contents(await auto(content, 46, 20)), [
      'First is here. Second is here. Third is here.',
      'Third is here. Fourth is here. Fifth is here.',
    ])
    assert.deepEqual(contents(await auto(content, 46, 13)), [
      'First is here. Second is here. Third is here.',
      'Fourth is here. Fifth is here.',
    ])
  })

  it('drop the overlap where it would push a whole block out', async () => {
    const content = `Some sentence. Its end.\n\n${'word '.repeat(9).trim()}.`
    assert.deepEqual(contents(await auto(content, 46, 20)), ['Some sentence. Its end.', `${'word '.repeat(9).trim()}.`])
  })

  it('name the page of their first block', async () => {
    const pages: PageText[] = [
      { number: 1, text: 'First page. It ends' },
      { number: 4, text: 'here. Last sentence on four.' },
      { number: 5, text: 'Fifth page.' },
    ]
    const chunks = await split(pages, { chunk_strategy: 'auto', chunk_size: 27 })
    assert.deepEqual(
      chunks.map(chunk => [chunk.content, chunk.page_number]),
      [
        ['First page. It ends', 1],
        ['here.', 4],
        ['Last sentence on four.', 4],
        ['Fifth page.', 5],
      ],
    )
  })

  it('end with a page where no more of the next one fits, and hold several that fit', async () => {
    const pages: PageText[] = [
      { number: 1, text: 'The lamp blinks\nwhile the pump runs.' },
      { number: 2, text: 'Warranty\nTwo years from the day of purchase.' },
      { number: 3, text: '- call us' },
      { number: 4, text: '- or write' },
    ]
    const chunks = await split(pages, { chunk_strategy: 'auto', chunk_size: 60 })
    assert.deepEqual(
      chunks.map(chunk => [chunk.content, chunk.page_number]),
      [
        [pages[0].text, 1],
        [`${pages[1].text}\n- call us`, 2],
        ['- or write', 4],
      ],
    )
  })

  it('measure tokens when configured', async () => {
    const paragraph = 'The quick brown fox jumps over the lazy dog.'
    const pair = `${paragraph}\n\n${paragraph}`
    const settings: PartialSettings = { chunk_strategy: 'auto', chunk_unit: 'tokens', chunk_size: tokens(pair) }
    assert.deepEqual(contents(await split(text(`${pair}\n\n${pair}`), settings)), [pair, pair])
    settings.chunk_size = tokens(pair) - 1
    assert.equal((await split(text(`${pair}\n\n${pair}`), settings)).length, 4)
  })
})

describe('chunks of generated texts', () => {
  /** Numbers in [0, n) that are the same in every run. */
  const random = (seed: number) => {
    let state = seed
    return (n: number) => {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0
      return Math.floor((state / 2 ** 32) * n)
    }
  }
  const FRAGMENTS = [
    'Ein Satz, der endet. ',
    'Und noch einer! ',
    'wort ',
    '👩‍👩‍👧 ',
    '😀',
    'e\u0301a\u0308 ',
    '这是一个没有空格的句子。',
    'ไม่มีช่องว่าง',
    'مرحبا. ',
    '\ud83d',
    '\n',
    '\r\n',
    '\n\n',
    '\n\n\n',
    '\n# Titel\n',
    '\n### Tief ###\n\n',
    '\n\nUnter\n---\n',
    '\n- Punkt\n  weiter\n- zwei\n',
    '\n1. eins\n2) zwei\n',
    '\n```ts\nlet a = 1\n\n  # b\n```\n',
    '\n~~~\nroh',
    '\n| a | b |\n|---|---|\n| 1 | 2 |\n',
    '        eingerückt\n',
    '\t',
    '   \n',
    '\u00a0',
    'x'.repeat(150),
    '漢'.repeat(90),
    ' '.repeat(70),
  ]
  const generate = (seed: number) => {
    const pick = random(seed)
    const from = 4 + pick(FRAGMENTS.length)
    return Array.from({ length: 5 + pick(80) }, () => FRAGMENTS[pick(from)]).join('')
  }

  const check = async (pages: PageText[], settings: PartialSettings) => {
    const joined = joinPages(pages)
    const points = Array.from(joined)
    const chunks = await split(pages, settings, 'Titel')
    const size = settings.chunk_size as number
    let covered = 0
    for (const [index, chunk] of chunks.entries()) {
      assert.equal(chunk.chunk_index, index)
      assert.equal(chunk.content, points.slice(chunk.char_start, chunk.char_end).join(''))
      assert(chunk.char_start < chunk.char_end)
      assert(chunk.char_end > covered, 'a chunk adds text')
      if (settings.chunk_unit !== 'tokens') assert(chunk.char_end - chunk.char_start <= size, 'size')
      const gap = points.slice(covered, chunk.char_start).join('')
      if (settings.chunk_strategy === 'auto') {
        assert.match(gap, /^\s*$/)
        assert.match(chunk.content, /\S$/)
        if (index) assert(chunk.char_start > chunks[index - 1].char_start)
        const page = pages.findIndex(
          (_, at) => Array.from(joinPages(pages.slice(0, at + 1))).length >= chunk.char_start,
        )
        assert.equal(chunk.page_number, pages[page].number)
      } else assert.equal(gap, '')
      covered = chunk.char_end
    }
    assert.match(points.slice(covered).join(''), settings.chunk_strategy === 'auto' ? /^\s*$/ : /^$/)
    return chunks
  }

  for (const chunk_strategy of ['size', 'auto'] as const) {
    for (const chunk_unit of ['characters', 'tokens'] as const) {
      it(`lose nothing and record their positions (${chunk_strategy}, ${chunk_unit})`, async () => {
        for (let seed = 1; seed <= 50; seed++) {
          const pick = random(seed * 7919)
          const content = generate(seed)
          if (!/\S/.test(content)) continue
          const cut = pick(content.length)
          const pages = [
            { number: 3, text: content.slice(0, cut).toWellFormed() },
            { number: 4, text: content.slice(cut) },
          ]
          for (const chunk_size of [1, 7, 40, 250]) {
            const chunk_overlap = pick(2) ? 0 : pick(chunk_size)
            await check(pages, { chunk_strategy, chunk_unit, chunk_size, chunk_overlap })
          }
        }
      })
    }
  }

  it('count the text between words in tokens, except what a very long blank adds', async () => {
    const paragraph = 'one two three four five'
    for (const blank of [
      '\n'.repeat(30),
      `\n${' '.repeat(60)}\n`,
      ' '.repeat(500),
      '\n'.repeat(500),
      ' \n'.repeat(100),
    ]) {
      const content = `${paragraph}${blank}${paragraph}`
      const settings: PartialSettings = { chunk_strategy: 'size', chunk_unit: 'tokens', chunk_overlap: 0 }
      const exact = tokens(content)
      assert.equal((await split(text(content), { ...settings, chunk_size: exact + blank.length })).length, 1)
      assert((await split(text(content), { ...settings, chunk_size: exact - 1 })).length > 1)
      if (blank.length <= 64) assert.equal((await split(text(content), { ...settings, chunk_size: exact })).length, 1)
    }
  })

  it('stay within their size in tokens, but for what a cut within a word or a character adds', async () => {
    for (let seed = 1; seed <= 40; seed++) {
      const content = generate(seed)
      for (const chunk of await split(text(content), {
        chunk_strategy: 'auto',
        chunk_unit: 'tokens',
        chunk_size: 40,
      })) {
        assert(tokens(chunk.content) <= 40 + 4, JSON.stringify(chunk.content))
      }
    }
  })

  it('never cut a fence that fits', async () => {
    const fence = '```ts\nlet a = 1. And\n\n  # b\n\n- c\n```'
    for (let seed = 1; seed <= 50; seed++) {
      const pick = random(seed)
      const plain = FRAGMENTS.filter(fragment => !/```|~~~/.test(fragment))
      const content = Array.from({ length: 30 }, () => (pick(4) ? plain[pick(plain.length)] : `\n${fence}\n`)).join('')
      const chunk_size = fence.length + pick(60)
      const chunk_overlap = pick(2) ? 0 : pick(chunk_size)
      const starts = Array.from(
        content.matchAll(/^```ts$/gm),
        match => Array.from(content.slice(0, match.index)).length,
      )
      const chunks = await check(text(content), { chunk_strategy: 'auto', chunk_size, chunk_overlap })
      for (const start of starts) {
        const end = start + fence.length
        assert(
          chunks.every(({ char_start, char_end }) => [char_start, char_end].every(at => at <= start || at >= end)),
          `seed ${seed}`,
        )
      }
    }
  })
})

describe('the cost of cutting', () => {
  const SHAPES: Record<string, string> = {
    'one line without spaces': 'x',
    'characters of two code units': '😀',
    'a script without spaces': '这是没有空格的句子。',
    'short sentences': 'A. ',
    'paragraphs of a letter': 'a\n\n',
    'a fence that never ends': '```\na',
    'headings of nothing else': '# a\n',
    'one line of pipes': '|',
    'a table': '|a|b|\n',
    'a list': '- a\n',
    whitespace: ' \n',
    'combining marks': 'e\u0301',
  }
  const cost = async (content: string, settings: PartialSettings) => {
    const before = process.cpuUsage()
    await split(text(content), settings)
    const { user, system } = process.cpuUsage(before)
    return (user + system) / 1000
  }

  for (const [name, fragment] of Object.entries(SHAPES)) {
    it(`grows with the length of the text only: ${name}`, async () => {
      const settings = [
        { chunk_strategy: 'size', chunk_size: 2000, chunk_overlap: 1900 },
        { chunk_strategy: 'auto', chunk_size: 2000, chunk_overlap: 1900 },
        { chunk_strategy: 'auto', chunk_unit: 'tokens' },
      ] satisfies PartialSettings[]
      for (const each of settings) {
        const length = each.chunk_unit ? 20_000 : 200_000
        const content = fragment.repeat(length / fragment.length)
        await cost(content, each)
        const small = await cost(content, each)
        // Eight times where it is linear, sixty-four where it is not; processor time, so that other load counts little. Other code
        // than linear is so each time.
        const most = 24 * small + 100
        let large = Number.POSITIVE_INFINITY
        for (let tries = 0; tries < 3 && large >= most; tries++) large = await cost(content.repeat(8), each)
        assert(large < most, `${small} ms, then ${large} ms`)
      }
    })
  }
})
