import assert from 'node:assert/strict'
import { mediaProblem } from '#content/files/media.ts'
import { gif, jpegHeader, pngHeader, webpHeader } from '../support/images.ts'
import { pdf } from '../support/pdf.ts'

/** The bytes of a file as a store returns them, in pieces of `size`. */
async function* pieces(bytes: Buffer, size = bytes.length) {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size)
}

const reasonOf = async (type: string, bytes: Buffer, size?: number) =>
  (await mediaProblem(type, pieces(bytes, size)))?.reason ?? null

describe('checks of media', () => {
  const images: [string, string, (width: number, height: number) => Buffer][] = [
    ['png', 'image/png', pngHeader],
    ['jpeg', 'image/jpeg', jpegHeader],
    ['webp, lossy', 'image/webp', (width, height) => webpHeader('VP8 ', width, height)],
    ['webp, lossless', 'image/webp', (width, height) => webpHeader('VP8L', width, height)],
    ['webp, extended', 'image/webp', (width, height) => webpHeader('VP8X', width, height)],
    ['gif', 'image/gif', (width, height) => gif(width, height, 2)],
  ]

  for (const [name, type, image] of images) {
    it(`read the dimensions of a ${name} from its header`, async () => {
      assert.equal(await reasonOf(type, image(8000, 5000)), null)
      assert.equal(await reasonOf(type, image(8000, 5001)), 'dimensions')
      assert.equal(await reasonOf(type, image(5001, 8000)), 'dimensions')
      // In pieces of one byte nothing changes.
      assert.equal(await reasonOf(type, image(8000, 5000), 1), null)
      assert.equal(await reasonOf(type, image(8000, 5001), 1), 'dimensions')
    })

    it(`refuse a ${name} that ends in its header`, async () => {
      assert.equal(await reasonOf(type, image(10, 10).subarray(0, 8)), 'content')
    })
  }

  it('bound width and height of an image', async () => {
    assert.equal(await reasonOf('image/png', pngHeader(16_384, 100)), null)
    assert.equal(await reasonOf('image/png', pngHeader(16_385, 100)), 'dimensions')
    assert.equal(await reasonOf('image/png', pngHeader(100, 16_385)), 'dimensions')
    assert.equal(await reasonOf('image/png', pngHeader(0, 100)), 'dimensions')
    assert.equal(await reasonOf('image/png', pngHeader(60_000, 60_000)), 'dimensions')
  })

  it('find the frame header of a jpeg after its metadata', async () => {
    assert.equal(await reasonOf('image/jpeg', jpegHeader(100, 100, 300_000), 4096), null)
    assert.equal(await reasonOf('image/jpeg', jpegHeader(9000, 9000, 300_000), 4096), 'dimensions')
    assert.equal(await reasonOf('image/jpeg', jpegHeader(100, 100, 17 * 1024 * 1024), 65_536), 'content')
  })

  it('bound the frames of a gif and the sides of each frame', async () => {
    assert.equal(await reasonOf('image/gif', gif(100, 100, 200)), null)
    assert.equal(await reasonOf('image/gif', gif(100, 100, 201)), 'frames')
    assert.equal(await reasonOf('image/gif', gif(100, 100, 1, { width: 60_000, height: 100 })), 'dimensions')
    assert.equal(await reasonOf('image/gif', gif(100, 100, 0)), 'content')
  })

  it('walk a gif of 20 MB of tiny blocks without keeping it', async () => {
    const start = gif(100, 100, 1).subarray(0, -2)
    const blocks = Buffer.alloc(65_536, Buffer.from([1, 0x41]))
    async function* endless() {
      yield start.subarray(0, -3)
      for (let sent = 0; sent < 320; sent++) yield blocks
      yield Buffer.from([0, 0x3b])
    }
    const before = process.memoryUsage().arrayBuffers
    assert.equal(await mediaProblem('image/gif', endless()), null)
    assert(process.memoryUsage().arrayBuffers - before < 1024 * 1024)
  })

  it('stop at an image of too many blocks, which would occupy the event loop', async () => {
    const blocks: [string, Buffer, Buffer][] = [
      ['image/gif', gif(100, 100, 1).subarray(0, -1), Buffer.from([0x21, 0xff, 0])],
      ['image/jpeg', Buffer.from('ffd8ff', 'hex'), Buffer.from([0xff])],
      ['image/jpeg', Buffer.from('ffd8', 'hex'), Buffer.from('ffe00002', 'hex')],
    ]
    for (const [type, start, block] of blocks) {
      let pages = 0
      async function* endless() {
        yield start
        for (; pages < 320; pages++) yield Buffer.alloc(60_000, block)
      }
      assert.equal((await mediaProblem(type, endless()))?.reason, 'content')
      assert.ok(pages < 3, `${pages} pages`)
    }
  })

  it('read no more of an image than its header', async () => {
    let read = 0
    let closed = false
    async function* endless() {
      try {
        yield pngHeader(10, 10)
        for (;;) {
          read += 1
          yield Buffer.alloc(1024)
        }
      } finally {
        closed = true
      }
    }
    assert.equal(await mediaProblem('image/png', endless()), null)
    assert.deepEqual([read, closed], [0, true])
  })

  it('require the first bytes of the type', async () => {
    const html = Buffer.from('<!doctype html><script>alert(1)</script>')
    const svg = Buffer.from('<svg xmlns="http://www.w3.org/2000/svg"><script/></svg>')
    const zip = Buffer.concat([Buffer.from('504b0304140000000800', 'hex'), Buffer.alloc(60)])
    for (const type of ['image/png', 'image/jpeg', 'image/webp', 'image/gif', 'application/pdf'])
      for (const bytes of [html, svg, zip, Buffer.from('x')]) assert.equal(await reasonOf(type, bytes), 'content', type)
    assert.equal(await reasonOf('image/jpeg', pngHeader(10, 10)), 'content')
    assert.equal(await reasonOf('application/pdf', pdf(['one'])), null)
    assert.equal(await reasonOf('text/plain', Buffer.from('hello')), null)
    assert.equal(await reasonOf('text/markdown; charset=utf-8', Buffer.from('# hello')), null)
    assert.equal(await reasonOf('text/plain', Buffer.from('\ufeffhello', 'utf16le')), null)
    for (const bytes of [zip, pngHeader(10, 10), pdf(['one']), Buffer.from('a\0b')])
      assert.equal(await reasonOf('text/plain', bytes), 'content')
    assert.equal(await reasonOf('audio/mpeg', zip), 'content')
  })

  it('accept four types of images', async () => {
    for (const type of ['image/svg+xml', 'image/bmp', 'image/tiff', 'image/avif'])
      assert.equal(await reasonOf(type, pngHeader(10, 10)), 'type')
  })
})
