import { createHash } from 'node:crypto'
import { deflateSync } from 'node:zlib'

export type PdfStream = { dictionary: string; data: Buffer }

/**
 * A PDF of the objects given, numbered from 1; object 1 is the catalog. An undefined entry is a number without an
 * object. `encrypt` seals every stream and adds the dictionary of the standard security handler (RC4, 40 bit).
 */
export function pdfOf(
  objects: (string | PdfStream | undefined)[],
  options: { trailer?: string; encrypt?: { user_password: string } } = {},
): Buffer {
  const id = Buffer.alloc(16, 7)
  const security = options.encrypt && standardSecurity(options.encrypt.user_password, id)
  const written = security ? [...objects, security.dictionary] : objects
  const parts: Buffer[] = [Buffer.from('%PDF-1.7\n%\xe2\xe3\xcf\xd3\n', 'latin1')]
  let length = parts[0].length
  const offsets: (number | null)[] = []
  const push = (text: string | Buffer) => {
    const bytes = typeof text === 'string' ? Buffer.from(text, 'latin1') : text
    parts.push(bytes)
    length += bytes.length
  }
  written.forEach((object, index) => {
    offsets.push(object === undefined ? null : length)
    if (object === undefined) return
    push(`${index + 1} 0 obj\n`)
    if (typeof object === 'string') push(object)
    else {
      const data = security ? security.seal(index + 1, object.data) : object.data
      push(`<< ${object.dictionary} /Length ${data.length} >>\nstream\n`)
      push(data)
      push('\nendstream')
    }
    push('\nendobj\n')
  })
  const start = length
  push(`xref\n0 ${written.length + 1}\n0000000000 65535 f \n`)
  push(
    offsets.map(at => (at === null ? '0000000000 65535 f \n' : `${String(at).padStart(10, '0')} 00000 n \n`)).join(''),
  )
  const encryption = security
    ? ` /Encrypt ${written.length} 0 R /ID [<${id.toString('hex')}> <${id.toString('hex')}>]`
    : ''
  push(
    `trailer\n<< /Size ${written.length + 1} /Root 1 0 R${encryption} ${options.trailer ?? ''} >>\nstartxref\n${start}\n%%EOF\n`,
  )
  return Buffer.concat(parts)
}

/** A PDF with a page for every text: Latin-1, one line for every line of it. An empty text is a page without any. */
export function pdf(
  pages: string[],
  options: { compress?: boolean; encrypt?: { user_password: string } } = {},
): Buffer {
  const kids = pages.map((_, index) => `${4 + index * 2} 0 R`)
  return pdfOf(
    [
      '<< /Type /Catalog /Pages 2 0 R >>',
      `<< /Type /Pages /Kids [${kids.join(' ')}] /Count ${pages.length} >>`,
      '<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>',
      ...pages.flatMap((text, index) => [
        `<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> /Contents ${5 + index * 2} 0 R >>`,
        pdfContent(text, options.compress),
      ]),
    ],
    { encrypt: options.encrypt },
  )
}

/** A PDF of 100,000 pages that takes its reader a minute: every page is searched from the start of the tree. */
export const slowPdf = (): Buffer =>
  pdfOf([
    '<< /Type /Catalog /Pages 2 0 R >>',
    `<< /Type /Pages /Kids [${'4 0 R '.repeat(100_000)}] /Count 100000 >>`,
    '<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>',
    '<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> /Contents 5 0 R >>',
    pdfContent('hello'),
  ])

/**
 * A PDF of one page in a font that is not embedded and has no map to Unicode: the codes mean what the predefined
 * character map `encoding` says, and its glyphs belong to the Adobe character collection `ordering`.
 */
export const cidPdf = (encoding: string, ordering: string, codes: Buffer): Buffer =>
  pdfOf([
    '<< /Type /Catalog /Pages 2 0 R >>',
    '<< /Type /Pages /Kids [4 0 R] /Count 1 >>',
    `<< /Type /Font /Subtype /Type0 /BaseFont /Sans-${encoding} /Encoding /${encoding} /DescendantFonts [6 0 R] >>`,
    '<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font << /F1 3 0 R >> >> /Contents 5 0 R >>',
    { dictionary: '', data: Buffer.from(`BT /F1 12 Tf 50 790 Td <${codes.toString('hex')}> Tj ET`) },
    `<< /Type /Font /Subtype /CIDFontType0 /BaseFont /Sans /FontDescriptor 7 0 R
      /CIDSystemInfo << /Registry (Adobe) /Ordering (${ordering}) /Supplement 2 >> >>`,
    `<< /Type /FontDescriptor /FontName /Sans /Flags 4 /FontBBox [0 -200 1000 800] /ItalicAngle 0 /Ascent 800
      /Descent -200 /CapHeight 700 /StemV 80 >>`,
  ])

/** The content stream of a page with this text in font F1. */
export function pdfContent(text: string, compress = false): PdfStream {
  if (/[^\n\x20-\x7e\xa0-\xff]/.test(text)) throw new Error('The PDF writer writes Latin-1 text only')
  const lines = text.split('\n').map(line => `(${line.replaceAll(/[\\()]/g, '\\$&')}) Tj`)
  const data = Buffer.from(text ? `BT /F1 12 Tf 14 TL 50 790 Td ${lines.join(' T* ')} ET` : '', 'latin1')
  return compress ? { dictionary: '/Filter /FlateDecode', data: deflateSync(data) } : { dictionary: '', data }
}

const md5 = (...parts: Buffer[]) => createHash('md5').update(Buffer.concat(parts)).digest()

/** The padding string of ISO 32000-1, 7.6.3.3. */
const PADDING = Buffer.from('28bf4e5e4e758a4164004e56fffa01082e2e00b6d0683e802f0ca9fe6453697a', 'hex')

/** Revision 2 of the standard security handler; the owner's password is `owner`. */
function standardSecurity(userPassword: string, id: Buffer) {
  const padded = (password: string) => Buffer.concat([Buffer.from(password, 'latin1'), PADDING]).subarray(0, 32)
  const owner = rc4(md5(padded('owner')).subarray(0, 5), padded(userPassword))
  const permissions = Buffer.alloc(4)
  permissions.writeInt32LE(-4)
  const key = md5(padded(userPassword), owner, permissions, id).subarray(0, 5)
  const user = rc4(key, PADDING)
  return {
    dictionary: `<< /Filter /Standard /V 1 /R 2 /O <${owner.toString('hex')}> /U <${user.toString('hex')}> /P -4 >>`,
    seal: (object: number, data: Buffer) =>
      rc4(md5(key, Buffer.from([object & 255, (object >> 8) & 255, object >> 16, 0, 0])).subarray(0, 10), data),
  }
}

function rc4(key: Buffer, data: Buffer): Buffer {
  const state = Uint8Array.from({ length: 256 }, (_, index) => index)
  for (let i = 0, j = 0; i < 256; i++) {
    j = (j + state[i] + key[i % key.length]) & 255
    ;[state[i], state[j]] = [state[j], state[i]]
  }
  let i = 0
  let j = 0
  return data.map(byte => {
    i = (i + 1) & 255
    j = (j + state[i]) & 255
    ;[state[i], state[j]] = [state[j], state[i]]
    return byte ^ state[(state[i] + state[j]) & 255]
  }) as Buffer
}
