import assert from 'node:assert/strict'
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { Readable } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { deflateSync } from 'node:zlib'
import {
  type Extraction,
  extractPdf as extractLoaded,
  extractText,
  READER_RIGHTS,
  textLimitFailure,
} from '#content/extract/extract.ts'
import { eventually } from '../support/app.ts'
import { cidPdf, type PdfStream, pdf, pdfContent, pdfOf, slowPdf } from '../support/pdf.ts'

const LIMITS = { INGESTION_MAX_PAGES: 5000, INGESTION_MAX_TEXT_BYTES: 52_428_800, INGESTION_PDF_PROCESSES: 4 }

type Options = Partial<Parameters<typeof extractLoaded>[2]>

/** A file as it comes from a store. */
const fileOf = (bytes: Buffer) => ({ size: bytes.length, pieces: Readable.from([bytes]) })

const extractPdf = (file: Buffer, limits: typeof LIMITS, options: Options = {}) =>
  extractLoaded(async () => fileOf(file), limits, { project: 'one', ...options })
const MEBIBYTE = 1024 * 1024

const failureOf = (extraction: Extraction) => {
  assert(!extraction.ok, 'expected a failure')
  assert.equal(extraction.retry, false)
  return extraction.error
}

const pagesOf = (extraction: Extraction) => {
  assert(extraction.ok, JSON.stringify(extraction))
  return extraction.pages
}

const parseFailed = (extraction: Extraction) => assert.equal(failureOf(extraction).code, 'PDF_PARSE_FAILED')

const overLimit = (extraction: Extraction, limit: RegExp) => {
  const { code, message } = failureOf(extraction)
  assert.equal(code, 'INGESTION_FAILED')
  assert.match(message, limit)
}

const CATALOG = '<< /Type /Catalog /Pages 2 0 R >>'
const PAGES = '<< /Type /Pages /Kids [4 0 R] /Count 1 >>'
const FONT = '<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>'
const PAGE =
  '<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> /Contents 5 0 R >>'

/** A PDF of one page with parts of it replaced. */
const onePage = (
  parts: {
    catalog?: string
    pages?: string
    font?: string
    page?: string
    content?: PdfStream
    more?: (string | PdfStream)[]
  },
  trailer?: string,
) =>
  pdfOf(
    [
      parts.catalog ?? CATALOG,
      parts.pages ?? PAGES,
      parts.font ?? FONT,
      parts.page ?? PAGE,
      parts.content ?? pdfContent('hello'),
      ...(parts.more ?? []),
    ],
    { trailer },
  )

const stream = (data: string) => ({ dictionary: '', data: Buffer.from(data, 'latin1') })

const utf16 = (text: string) => Buffer.from(text, 'utf16le').swap16()

const slow = slowPdf
const slowLimits = { ...LIMITS, INGESTION_MAX_PAGES: 1_000_000 }

type Process = { pid: number; parent: number; bytes: number }

/** The processes that read PDFs for this process or another one. */
async function readers(parent?: number): Promise<Process[]> {
  const { stdout } = await promisify(execFile)('ps', ['-A', '-o', 'pid=,ppid=,rss=,args='])
  return stdout
    .split('\n')
    .filter(line => line.includes('pdf-process.ts'))
    .map(line => line.trim().split(/\s+/).map(Number))
    .map(([pid, ppid, kib]) => ({ pid, parent: ppid, bytes: kib * 1024 }))
    .filter(process => parent === undefined || process.parent === parent)
}

/** The most memory a reader of this process had during a task. */
async function peak(running: Promise<unknown>): Promise<number> {
  let most = 0
  let done = false
  void running.finally(() => {
    done = true
  })
  while (!done) {
    for (const { bytes } of await readers(process.pid)) most = Math.max(most, bytes)
    await sleep(50)
  }
  return most
}

describe('text of PDFs', () => {
  it('comes by page with the numbers of the file, without blank pages', async () => {
    for (const compress of [false, true]) {
      const extraction = await extractPdf(pdf(['First (1)\nsecond line', '', '  ', 'Größe \\ é'], { compress }), LIMITS)
      assert.deepEqual(extraction, {
        ok: true,
        pages: [
          { number: 1, text: 'First (1)\nsecond line' },
          { number: 4, text: 'Größe \\ é' },
        ],
        total_pages: 4,
      })
    }
  })

  it('may be nothing', async () => {
    assert.deepEqual(await extractPdf(pdf(['', '']), LIMITS), { ok: true, pages: [], total_pages: 2 })
  })

  it('includes the values of form fields, with their labels, but no passwords', async () => {
    const widget = (entries: string) => `<< /Type /Annot /Subtype /Widget /Rect [0 0 100 20] /P 3 0 R ${entries} >>`
    const fields = [
      widget('/FT /Tx /T (name) /TU (Full name) /V (Ada Lovelace)'),
      widget('/FT /Tx /T (iban) /V (DE02 1203 0000)'),
      widget('/FT /Tx /T (empty) /V ()'),
      widget('/FT /Tx /Ff 8192 /T (pin) /V (4711)'),
      widget('/FT /Btn /T (agree) /V /Yes /AS /Yes /AP << /N << /Yes 5 0 R /Off 5 0 R >> >>'),
      widget('/FT /Btn /T (refuse) /V /Off /AS /Off /AP << /N << /Yes 5 0 R /Off 5 0 R >> >>'),
      widget('/FT /Ch /Ff 131072 /T (country) /Opt [[(fi) (Finland)] [(ie) (Ireland)]] /V (fi)'),
    ]
    const references = fields.map((_, index) => `${6 + index} 0 R`).join(' ')
    const file = pdfOf([
      `<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [${references}] >> >>`,
      '<< /Type /Pages /Kids [3 0 R] /Count 1 >>',
      `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Annots [${references}] >>`,
      FONT,
      pdfContent(''),
      ...fields,
    ])
    assert.deepEqual(pagesOf(await extractPdf(file, LIMITS)), [
      { number: 1, text: 'Full name: Ada Lovelace\niban: DE02 1203 0000\nagree: Yes\ncountry: Finland' },
    ])
    overLimit(await extractPdf(file, { ...LIMITS, INGESTION_MAX_TEXT_BYTES: 30 }), /30 bytes/)
  })

  it('has no U+0000', async () => {
    const toUnicode = stream(
      '/CIDInit /ProcSet findresource begin 12 dict begin begincmap 1 begincodespacerange <00> <FF> endcodespacerange 1 beginbfchar <41> <0000> endbfchar endcmap end end',
    )
    const file = onePage({
      font: FONT.replace('>>', '/ToUnicode 6 0 R >>'),
      content: pdfContent('xAy'),
      more: [toUnicode],
    })
    assert.deepEqual(pagesOf(await extractPdf(file, LIMITS)), [{ number: 1, text: 'xy' }])
  })

  it('is read in fonts that have a predefined character map and none to Unicode', async () => {
    const cases: [encoding: string, ordering: string, codes: Buffer, text: string][] = [
      ['UniGB-UCS2-H', 'GB1', utf16('中文文本'), '中文文本'],
      ['GBK-EUC-H', 'GB1', Buffer.from('d6d0cec4', 'hex'), '中文'],
      ['UniCNS-UTF16-H', 'CNS1', utf16('繁體中文'), '繁體中文'],
      ['ETen-B5-H', 'CNS1', Buffer.from('a4a4a4e5', 'hex'), '中文'],
      ['UniJIS-UCS2-H', 'Japan1', utf16('日本語のテキスト'), '日本語のテキスト'],
      ['UniJIS-UTF16-V', 'Japan1', utf16('縦書き'), '縦書き'],
      ['90ms-RKSJ-H', 'Japan1', Buffer.from('93fa967b8cea414243', 'hex'), '日本語ABC'],
      ['H', 'Japan1', Buffer.from('467c4b5c', 'hex'), '日本'],
      ['Identity-H', 'Japan1', Buffer.from('0465', 'hex'), '亜'],
      ['UniKS-UCS2-H', 'Korea1', utf16('한국어'), '한국어'],
      ['KSCms-UHC-H', 'Korea1', Buffer.from('c7d1b1db', 'hex'), '한글'],
    ]
    for (const [encoding, ordering, codes, text] of cases) {
      assert.deepEqual(pagesOf(await extractPdf(cidPdf(encoding, ordering, codes), LIMITS)), [{ number: 1, text }])
    }
    for (const encoding of ['Unknown-H', '../../../package']) {
      assert.deepEqual(pagesOf(await extractPdf(cidPdf(encoding, 'Japan1', utf16('日')), LIMITS)), [], encoding)
    }
  })

  it('is read from an encrypted file that opens without a password, and from no other', async () => {
    assert.deepEqual(pagesOf(await extractPdf(pdf(['secret'], { encrypt: { user_password: '' } }), LIMITS)), [
      { number: 1, text: 'secret' },
    ])
    const { code, message } = failureOf(await extractPdf(pdf(['secret'], { encrypt: { user_password: 'x' } }), LIMITS))
    assert.equal(code, 'PDF_PARSE_FAILED')
    assert.match(message, /password/)
  })

  it('is not extracted from a file that is no PDF', async () => {
    const png = Buffer.concat([Buffer.from('89504e470d0a1a0a0000000d49484452', 'hex'), Buffer.alloc(5000, 9)])
    const noise = Buffer.alloc(300_000)
    for (let at = 0; at < noise.length; at++) noise[at] = Math.imul(at, 2654435761) >>> 24
    parseFailed(await extractPdf(Buffer.alloc(0), LIMITS))
    parseFailed(await extractPdf(png, LIMITS))
    parseFailed(await extractPdf(Buffer.concat([Buffer.from('%PDF-1.7\n'), noise]), LIMITS))
    parseFailed(await extractPdf(Buffer.from('plain text'), LIMITS))
    const whole = pdf(Array.from({ length: 20 }, (_, page) => `page ${page}`))
    parseFailed(await extractPdf(whole.subarray(0, whole.length / 2), LIMITS))
  })

  it('ends at the limits of pages and of text', async () => {
    const file = pdf(Array.from({ length: 20 }, () => 'ten bytes!'))
    overLimit(await extractPdf(file, { ...LIMITS, INGESTION_MAX_PAGES: 19 }), /19 pages \(INGESTION_MAX_PAGES\)/)
    overLimit(
      await extractPdf(file, { ...LIMITS, INGESTION_MAX_TEXT_BYTES: 199 }),
      /199 bytes \(INGESTION_MAX_TEXT_BYTES\)/,
    )
    const exact = { ...LIMITS, INGESTION_MAX_PAGES: 20, INGESTION_MAX_TEXT_BYTES: 200 }
    assert.equal(pagesOf(await extractPdf(file, exact)).length, 20)
  })

  it('survives structures that go round in circles or lie about their size', async () => {
    parseFailed(await extractPdf(onePage({ pages: '<< /Type /Pages /Kids [2 0 R 2 0 R] /Count 4 >>' }), LIMITS))
    const cases = {
      outlines: onePage({
        catalog: '<< /Type /Catalog /Pages 2 0 R /Outlines 6 0 R >>',
        more: ['<< /First 7 0 R /Last 7 0 R >>', '<< /Title (a) /Next 7 0 R /First 6 0 R /Parent 6 0 R >>'],
      }),
      count: onePage({ pages: '<< /Type /Pages /Kids [4 0 R] /Count 1000000000 >>' }),
      length: onePage({ content: { dictionary: '/Length 5 0 R', data: pdfContent('hello').data } }),
      xref: onePage({}, `/Prev ${onePage({}, '/Prev 000').lastIndexOf('xref\n0')}`),
      form: onePage({
        page: PAGE.replace('/Font', '/XObject << /X 6 0 R >> /Font'),
        content: stream('BT /F1 12 Tf 50 700 Td (hello) Tj ET /X Do'),
        more: [
          {
            dictionary: '/Type /XObject /Subtype /Form /BBox [0 0 9 9] /Resources << /XObject << /X 6 0 R >> >>',
            data: Buffer.from('/X Do /X Do'),
          },
        ],
      }),
    }
    for (const [name, file] of Object.entries(cases)) {
      assert.deepEqual(pagesOf(await extractPdf(file, LIMITS)), [{ number: 1, text: 'hello' }], name)
    }
  })

  it('survives structures nested a million deep', async () => {
    const deep = `${'['.repeat(1_000_000)}${']'.repeat(1_000_000)}`
    parseFailed(await extractPdf(onePage({ page: PAGE.replace('/Contents', `/X ${deep} /Contents`) }), LIMITS))
    for (const open of ['[', '<< /a ']) {
      assert.deepEqual(pagesOf(await extractPdf(onePage({ content: stream(open.repeat(1_000_000)) }), LIMITS)), [])
    }
    assert.deepEqual(pagesOf(await extractPdf(pdf(['after that']), LIMITS)), [{ number: 1, text: 'after that' }])
  })
})

describe('the process that reads PDFs', () => {
  it('ends when a file unpacks to more memory than it may take, and the next file is read by another', async () => {
    const zeros = deflateSync(Buffer.alloc(7e8), { level: 1 })
    const bombs = [
      { dictionary: '/Filter /FlateDecode', data: zeros },
      { dictionary: '/Filter [/FlateDecode /FlateDecode]', data: deflateSync(zeros) },
    ]
    for (const content of bombs) {
      const reading = extractPdf(onePage({ content }), LIMITS)
      const most = await peak(reading)
      overLimit(await reading, /536870912 bytes of memory/)
      // Its memory is read every 25 ms; memory taken in between comes on top.
      assert(most < 1024 * MEBIBYTE, `${most / MEBIBYTE} MiB`)
    }
    assert.deepEqual(pagesOf(await extractPdf(pdf(['alive']), LIMITS)), [{ number: 1, text: 'alive' }])
  })

  it('ends when a file makes more objects than its heap may hold', async () => {
    const objects = '<</A[]>>'.repeat(3_000_000)
    overLimit(
      await extractPdf(onePage({ page: PAGE.replace('/Contents', `/X [${objects}] /Contents`) }), LIMITS),
      /536870912 bytes of memory/,
    )
  })

  it('is killed after its time', async () => {
    overLimit(await extractPdf(slow(), slowLimits, { timeoutMs: 700 }), /longer than 700 ms/)
    await eventually(async () => (await readers(process.pid)).length === 0)
  })

  it('is killed when no caller waits for the text', async () => {
    const reason = new Error('stopping')
    const aborting = new AbortController()
    setTimeout(() => aborting.abort(reason), 500)
    await assert.rejects(extractPdf(slow(), slowLimits, { signal: aborting.signal }), reason)
    await eventually(async () => (await readers(process.pid)).length === 0)
    await assert.rejects(extractPdf(pdf(['x']), LIMITS, { signal: aborting.signal }), reason)
  })

  it('fails for a try when it is killed by others', async () => {
    const reading = extractPdf(slow(), slowLimits)
    await eventually(async () => (await readers(process.pid)).length === 1)
    process.kill((await readers(process.pid))[0].pid, 'SIGKILL')
    const extraction = await reading
    assert(!extraction.ok)
    assert.equal(extraction.error.code, 'INGESTION_FAILED')
    assert.match(extraction.error.message, /SIGKILL/)
    assert.equal(extraction.retry, true)
  })

  it('reads the next file too, and several files concurrently', async () => {
    await extractPdf(pdf(['one']), LIMITS)
    const [first] = await readers(process.pid)
    const texts = Array.from({ length: 3 }, (_, at) => `text ${at}`)
    for (const text of texts) assert.equal(pagesOf(await extractPdf(pdf([text]), LIMITS))[0].text, text)
    assert.deepEqual(
      (await readers(process.pid)).map(reader => reader.pid),
      [first.pid],
    )
    const extractions = await Promise.all(texts.map(text => extractPdf(pdf([text]), LIMITS)))
    assert.deepEqual(
      extractions.map(extraction => pagesOf(extraction)[0].text),
      texts,
    )
    assert.equal((await readers(process.pid)).length, 3)
  })

  it('is limited to INGESTION_PDF_PROCESSES, and waiting for a process does not use up the time limit', async () => {
    for (const { pid } of await readers(process.pid)) process.kill(pid, 'SIGKILL')
    await eventually(async () => (await extractPdf(pdf(['x']), LIMITS)).ok)
    const one = { ...slowLimits, INGESTION_PDF_PROCESSES: 1 }
    const started = performance.now()
    let loaded = 0
    const reading = Array.from({ length: 3 }, () =>
      extractLoaded(
        async () => {
          loaded++
          return fileOf(slow())
        },
        one,
        { project: 'one', timeoutMs: 700 },
      ),
    )
    const last = extractPdf(pdf(['at last']), one, { timeoutMs: 5000 })
    let most = 0
    const watched = Promise.all(reading).then(extractions => {
      for (const extraction of extractions) overLimit(extraction, /longer than 700 ms/)
      return true
    })
    for (let over = false; !over; over = await Promise.race([watched, readers(process.pid).then(() => false)])) {
      most = Math.max(most, (await readers(process.pid)).length)
      assert.ok(loaded <= 1 + (performance.now() - started) / 700, `${loaded} files in memory`)
    }
    assert.ok(performance.now() - started > 2100)
    assert.ok(most <= 2, `${most} processes, one of them being killed`)
    assert.deepEqual(pagesOf(await last), [{ number: 1, text: 'at last' }])
  })

  it('reads for each project in turn', async () => {
    const two = { ...slowLimits, INGESTION_PDF_PROCESSES: 2 }
    const begun: string[] = []
    const reading = (project: string, file: Buffer) =>
      extractLoaded(
        async () => {
          begun.push(project)
          return fileOf(file)
        },
        two,
        { project, timeoutMs: 500 },
      )
    const hostile = Array.from({ length: 4 }, () => reading('hostile', slow()))
    const others = ['other', 'third'].map(project => reading(project, pdf(['x'])))
    await Promise.all([...hostile, ...others])
    assert.deepEqual(begun, ['hostile', 'hostile', 'other', 'third', 'hostile', 'hostile'])
  })

  it('is not waited for by a caller who has left; others keep their turn', async () => {
    const one = { ...slowLimits, INGESTION_PDF_PROCESSES: 1 }
    const reading = extractPdf(slow(), one, { timeoutMs: 1000 })
    const reason = new Error('stopping')
    const aborting = new AbortController()
    const leaving = extractPdf(slow(), one, { signal: aborting.signal })
    const next = extractPdf(pdf(['next']), one)
    aborting.abort(reason)
    await assert.rejects(leaving, reason)
    overLimit(await reading, /longer than 1000 ms/)
    assert.deepEqual(pagesOf(await next), [{ number: 1, text: 'next' }])
  })

  it('is free for the next file when one cannot be loaded', async () => {
    const one = { ...LIMITS, INGESTION_PDF_PROCESSES: 1 }
    const lost = new Error('lost')
    await assert.rejects(
      extractLoaded(() => Promise.reject(lost), one, { project: 'one' }),
      lost,
    )
    const halfway = async function* () {
      yield Buffer.alloc(MEBIBYTE)
      throw lost
    }
    await assert.rejects(
      extractLoaded(async () => ({ size: 2 * MEBIBYTE, pieces: halfway() }), one, { project: 'one' }),
      lost,
    )
    assert.deepEqual(pagesOf(await extractPdf(pdf(['next']), one)), [{ number: 1, text: 'next' }])
  })

  it('is replaced when it is lost while it waits', async () => {
    await extractPdf(pdf(['one']), LIMITS)
    for (const { pid } of await readers(process.pid)) process.kill(pid, 'SIGKILL')
    const again = await eventually(async () => {
      const extraction = await extractPdf(pdf(['two']), LIMITS)
      return extraction.ok ? extraction : null
    })
    assert.equal(pagesOf(again)[0].text, 'two')
  })

  it('receives no variable of the environment', async function () {
    if (!existsSync('/proc')) return this.skip()
    process.env.CONTENT_TEST_SECRET = 'hidden'
    try {
      await Promise.all([1, 2, 3, 4].map(() => extractPdf(pdf(['one']), LIMITS)))
    } finally {
      delete process.env.CONTENT_TEST_SECRET
    }
    const found = await readers(process.pid)
    assert(found.length >= 4)
    for (const { pid } of found)
      assert.doesNotMatch(readFileSync(`/proc/${pid}/environ`, 'latin1'), /SECRET|DATABASE|PATH/)
  })

  for (const state of ['waits', 'reads']) {
    it(`ends with the process it works for while it ${state}`, async () => {
      const program = `
        import { extractPdf } from '${path.resolve('src/content/extract/extract.ts')}'
        const chunks = []
        for await (const chunk of process.stdin) chunks.push(chunk)
        const limits = ${JSON.stringify(slowLimits)}
        const size = chunks.reduce((sum, { length }) => sum + length, 0)
        const reading = extractPdf(async () => ({ size, pieces: chunks }), limits, { project: 'one' })
        ${state === 'waits' ? 'await reading' : ''}
        console.log('now')
        setInterval(() => {}, 1000)`
      const owner = spawn(process.execPath, ['--input-type=module', '--eval', program], {
        stdio: ['pipe', 'pipe', 'inherit'],
      })
      owner.stdin.end(state === 'waits' ? pdf(['one']) : slow())
      await once(owner.stdout, 'data')
      const reader = await eventually(async () =>
        (await readers(owner.pid)).find(({ bytes }) => state === 'waits' || bytes > 100 * MEBIBYTE),
      )
      owner.kill('SIGKILL')
      await eventually(async () => (await readers()).every(({ pid }) => pid !== reader.pid))
    })
  }

  it('reads its own code and no other file, writes none and starts nothing', async () => {
    const attempts = {
      code: `fs.readFileSync(${JSON.stringify(path.resolve('src/content/extract/pdf-process.ts'))})`,
      maps: `fs.readFileSync(${JSON.stringify(realpathSync('node_modules/pdfjs-dist/cmaps/UniGB-UCS2-H.bcmap'))})`,
      data: `fs.readdirSync(${JSON.stringify(path.resolve('.'))})`,
      environment: 'fs.readFileSync(`/proc/${process.ppid}/environ`)',
      password: 'fs.readFileSync("/etc/passwd")',
      file: `fs.writeFileSync(${JSON.stringify(path.resolve('written'))}, "x")`,
      program: 'require("node:child_process").execFileSync("true")',
    }
    const script = `const fs = require('node:fs'); const found = {}
      ${Object.entries(attempts)
        .map(([name, code]) => `try { ${code}; found.${name} = 'done' } catch (error) { found.${name} = error.code }`)
        .join('\n')}
      console.log(JSON.stringify(found))`
    // Without the options of the tests, like the reader itself.
    const { stdout } = await promisify(execFile)(process.execPath, [...READER_RIGHTS, '-e', script], { env: {} })
    assert.deepEqual(JSON.parse(stdout), {
      code: 'done',
      maps: 'done',
      data: 'ERR_ACCESS_DENIED',
      environment: 'ERR_ACCESS_DENIED',
      password: 'ERR_ACCESS_DENIED',
      file: 'ERR_ACCESS_DENIED',
      program: 'ERR_ACCESS_DENIED',
    })
  })

  const layouts: Record<string, (modules: string) => void> = {
    'node_modules is a link': modules => symlinkSync(path.resolve('node_modules'), modules),
    // As pnpm lays packages out.
    'every package is a link': modules => {
      for (const name of readdirSync('node_modules')) {
        const target = path.resolve('node_modules', name)
        mkdirSync(path.dirname(path.join(modules, name)), { recursive: true })
        symlinkSync(realpathSync(target), path.join(modules, name))
      }
    },
  }
  for (const [layout, link] of Object.entries(layouts)) {
    it(`reads where ${layout}`, async () => {
      const root = mkdtempSync(path.join(tmpdir(), 'muster-layout-'))
      try {
        cpSync('src', path.join(root, 'src'), { recursive: true })
        cpSync('package.json', path.join(root, 'package.json'))
        link(path.join(root, 'node_modules'))
        const file = path.join(root, 'one.pdf')
        // Text that only comes out with the character maps of the package.
        writeFileSync(file, cidPdf('UniJIS-UCS2-H', 'Japan1', utf16('日')))
        const program = `
          import { readFileSync } from 'node:fs'
          import { extractPdf } from './src/content/extract/extract.ts'
          const bytes = readFileSync('one.pdf')
          const load = async () => ({ size: bytes.length, pieces: [bytes] })
          console.log(JSON.stringify(await extractPdf(load, ${JSON.stringify(LIMITS)}, { project: 'one' })))`
        const options = ['--input-type=module', '--eval', program]
        const { stdout } = await promisify(execFile)(process.execPath, options, { cwd: root })
        assert.deepEqual(pagesOf(JSON.parse(stdout)), [{ number: 1, text: '日' }])
      } finally {
        rmSync(root, { recursive: true, force: true })
      }
    })
  }

  it('does not keep the process it works for alive', async () => {
    const program = `
      import { extractPdf } from '${path.resolve('src/content/extract/extract.ts')}'
      const chunks = []
      for await (const chunk of process.stdin) chunks.push(chunk)
      const size = chunks.reduce((sum, { length }) => sum + length, 0)
      const file = async () => ({ size, pieces: chunks })
      console.log((await extractPdf(file, ${JSON.stringify(LIMITS)}, { project: 'one' })).pages[0].text)`
    const owner = spawn(process.execPath, ['--input-type=module', '--eval', program], {
      stdio: ['pipe', 'pipe', 'inherit'],
    })
    owner.stdin.end(pdf(['one']))
    const [text] = await once(owner.stdout, 'data')
    assert.equal(String(text), 'one\n')
    const [code] = await once(owner, 'exit')
    assert.equal(code, 0)
  })
})

describe('text of text files', () => {
  async function* piecesOf(bytes: Buffer, size: number) {
    for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size)
  }
  /** The same however the bytes come. */
  const text = async (from: Buffer | string, contentType = 'text/plain') => {
    const bytes = Buffer.from(from as string)
    const whole = await extractText(() => piecesOf(bytes, bytes.length), contentType, LIMITS)
    assert.deepEqual(await extractText(() => piecesOf(bytes, 1), contentType, LIMITS), whole)
    assert(whole.ok)
    assert.equal(whole.total_pages, whole.pages.length)
    return whole.pages
  }
  const page = (text: string) => [{ number: null, text }]

  it('is one page without whitespace around it, or none', async () => {
    assert.deepEqual(await text(' \r\n# A\n\n b \t\u00a0\n', 'text/markdown'), page('# A\n\n b'))
    assert.deepEqual(await text(' \n\t'), [])
    assert.deepEqual(await text(''), [])
  })

  it('loses its byte order mark and U+0000', async () => {
    assert.deepEqual(await text(Buffer.from('\ufeff a\0b')), page('ab'))
  })

  it('is decoded in the charset that its bytes show, and fails if they show none', async () => {
    const samples: [string, number[], string][] = [
      [
        'windows-1252',
        [0x93, 0x53, 0xfc, 0xdf, 0x65, 0x20, 0xc4, 0x70, 0x66, 0x65, 0x6c, 0x94, 0x20],
        'läuft nicht für immer, möchten Sie später zurückkommen? Größe und Maß stehen auf der Rückseite ',
      ],
      [
        'gb18030',
        [
          0xcd, 0xcb, 0xbf, 0xee, 0xd5, 0xfe, 0xb2, 0xdf, 0xa3, 0xba, 0xce, 0xd2, 0xc3, 0xc7, 0xd6, 0xa7, 0xb3, 0xd6,
          0xc6, 0xdf, 0xcc, 0xec, 0xce, 0xde, 0xc0, 0xed, 0xd3, 0xc9, 0xcd, 0xcb, 0xbf, 0xee,
        ],
        '',
      ],
      [
        'shift_jis',
        [
          0x95, 0xd4, 0x8b, 0xe0, 0x82, 0xcd, 0x8e, 0x4f, 0x8f, 0x5c, 0x93, 0xfa, 0x88, 0xc8, 0x93, 0xe0, 0x82, 0xc9,
          0x8d, 0x73, 0x82, 0xa2, 0x82, 0xdc, 0x82, 0xb7, 0x81, 0x42,
        ],
        '',
      ],
    ]
    for (const [charset, bytes, more] of samples) {
      const all = Buffer.concat([Buffer.from('Note: '), Buffer.from(bytes), Buffer.from(more, 'latin1')])
      const expected = new TextDecoder(charset).decode(all).trim()
      for (const type of ['text/plain', 'text/plain; charset=utf-8']) {
        const extraction = await extractText(() => piecesOf(all, 7), type, LIMITS)
        assert.deepEqual(extraction, { ok: true, pages: page(expected), total_pages: 1, charset })
      }
    }
    const german = Buffer.from('Größe und Maß stehen auf der Rückseite, möchten Sie später zurückkommen?')
    const unknown = [
      [0x61, 0xff, 0x62, 0xc3],
      [0xed, 0xa0, 0x80, 0x61],
      [0xff],
      [...german.subarray(0, 40), 0xff, ...german.subarray(40)],
      [...german, 0xc3],
      Array.from({ length: 4000 }, (_, index) => (index * index * 31 + (index >> 3) * 7) % 256),
    ]
    for (const bytes of unknown) {
      const extraction = await extractText(() => piecesOf(Buffer.from(bytes), 5), 'text/plain', LIMITS)
      assert(!extraction.ok)
      assert.deepEqual([extraction.error.code, extraction.retry], ['FILE_PARSE_FAILED', false])
      assert.match(extraction.error.message, /charset/)
    }
  })

  it('is decoded with the charset of its content type', async () => {
    assert.deepEqual(await text(Buffer.from('Größe', 'latin1'), 'text/plain; charset=ISO-8859-1'), page('Größe'))
    assert.deepEqual(
      await text(Buffer.from('\ufeffGröße', 'utf16le'), 'text/plain;format=flowed;Charset="utf-16le"'),
      page('Größe'),
    )
    assert.deepEqual(
      await text(Buffer.from([0x93, 0xfa, 0x96, 0x7b]), 'text/markdown; charset=shift_jis'),
      page('日本'),
    )
  })

  it('is decoded as UTF-16 where its byte order mark says so, whatever the content type does', async () => {
    const little = Buffer.from('\ufeffGröße 日本', 'utf16le')
    for (const type of ['text/plain', 'text/csv; charset=utf-8']) {
      assert.deepEqual(await text(little, type), page('Größe 日本'))
      assert.deepEqual(await text(Buffer.from(little).swap16(), type), page('Größe 日本'))
    }
    assert.deepEqual(await text(little.subarray(0, 2)), [])
    assert.deepEqual(await text(Buffer.from('x')), page('x'))
  })

  it('is read as UTF-8 where the charset says nothing', async () => {
    for (const type of ['text/plain', 'text/plain; charset=klingon', 'text/plain; charset=', 'text/plain; charset="']) {
      assert.deepEqual(await text('Größe', type), page('Größe'))
    }
  })

  it('is not read further once it is too long, whatever the file holds', async () => {
    const read = async (texts: Iterable<string>, maxBytes: number) => {
      let count = 0
      const pieces = (async function* () {
        for (const each of texts) {
          count++
          yield Buffer.from(each)
        }
      })()
      const extraction = await extractText(() => pieces, 'text/plain', { INGESTION_MAX_TEXT_BYTES: maxBytes })
      return { extraction, count }
    }
    const many = function* (n: number, text: string) {
      for (let at = 0; at < n; at++) yield text
    }
    const { extraction, count } = await read(many(1000, 'é'.repeat(500)), 10_000)
    overLimit(extraction, /10000 bytes \(INGESTION_MAX_TEXT_BYTES\)/)
    assert.equal(count, 11)
    assert.deepEqual(pagesOf((await read(many(10, 'é'.repeat(500)), 10_000)).extraction), page('é'.repeat(5000)))
    // Trimmed blanks are no text, however many; blanks in between are.
    const blank = ' '.repeat(1000)
    assert.deepEqual(pagesOf((await read([...many(100, blank), 'a', ...many(100, blank)], 100)).extraction), page('a'))
    assert.deepEqual(pagesOf((await read(['a', ' \n', '\n ', 'b'], 6)).extraction), page('a \n\n b'))
    overLimit((await read(['a', ' \n', '\n ', 'b'], 5)).extraction, /5 bytes/)
    overLimit((await read(['a', ...many(100, blank), 'b'], 100)).extraction, /100 bytes/)
  })

  it('of pages has a length in bytes that can be too much', () => {
    const pages = [page('äö')[0], page('x')[0]]
    assert.equal(textLimitFailure(pages, 6), null)
    const failure = textLimitFailure(pages, 5)
    assert.equal(failure?.code, 'INGESTION_FAILED')
    assert.match(failure.message, /5 bytes \(INGESTION_MAX_TEXT_BYTES\)/)
    assert.equal(textLimitFailure([], 0), null)
  })
})
