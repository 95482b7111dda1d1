import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import sharp from 'sharp'
import { imageConverter, imageDigest } from '#content/images/convert.ts'
import { eventually } from '../support/app.ts'
import { png } from '../support/images.ts'

const NONE = Number.MAX_SAFE_INTEGER
const SMALL = { maxSide: 20, maxPixels: NONE, maxBytes: NONE }

describe('conversion of images', function () {
  this.timeout(30_000)
  const converter = imageConverter({ state: new Map() })
  after(() => converter.close())

  /** Processes that convert images, started by this one. */
  const processes = (): number[] =>
    execFileSync('ps', ['-o', 'pid=,args=', '--ppid', String(process.pid)], { encoding: 'utf8' })
      .split('\n')
      .filter(line => line.includes('image-process.ts'))
      .map(line => Number.parseInt(line, 10))
  const convert = (bytes: Buffer, signal = new AbortController().signal, target = SMALL) => {
    const data_base64 = bytes.toString('base64')
    return converter.convert({ digest: imageDigest(data_base64), data_base64 }, target, {
      project: 'project_1',
      signal,
    })
  }
  const plain = (side: number, channels: 3 | 4 = 3) =>
    sharp({ create: { width: side, height: side, channels, background: '#123456' } })
      .png()
      .toBuffer()

  it('equal images are converted once, also concurrently; a caller that leaves does not end it for others', async () => {
    const image = await plain(40)
    const leaving = new AbortController()
    const all = [convert(image), convert(image, leaving.signal), convert(image)]
    leaving.abort(new Error('left'))
    await assert.rejects(all[1]!, /left/)
    const [one, , two] = await Promise.allSettled(all)
    assert.ok(one!.status === 'fulfilled' && two!.status === 'fulfilled')
    assert.deepEqual([one.value.isNew, two.value.isNew], [true, false])
    assert.ok(one.value.outcome.ok)
    assert.deepEqual(two.value.outcome, one.value.outcome)
    assert.equal((await convert(image)).isNew, false)
    assert.equal(processes().length, 1)
  })

  it('a conversion whose process is killed is repeated once, in a process that had no other', async () => {
    await convert(await plain(41))
    const [pid] = processes()
    const wide = png(20_000, 4000, Buffer.alloc(2501 * 4000))
    const killed = convert(wide)
    process.kill(pid!, 'SIGKILL')
    const other = await eventually(() => processes().find(each => each !== pid))
    process.kill(other, 'SIGKILL')
    const { outcome } = await killed
    assert.ok(!outcome.ok)
    assert.equal(outcome.kind, 'failed')
    assert.ok((await convert(await plain(42))).outcome.ok)
    assert.ok(processes().every(each => each !== pid && each !== other))
  })

  it('a conversion without a waiting caller is ended', async () => {
    const leaving = new AbortController()
    const large = png(20_000, 4900, Buffer.alloc(2501 * 4900))
    const left = convert(large, leaving.signal)
    setTimeout(() => leaving.abort(new Error('left')), 20)
    await assert.rejects(left, /left/)
    await eventually(() => processes().length === 0)
    assert.ok((await convert(await plain(43))).outcome.ok)
  })

  it('transparent pixels stay, and become white in a JPEG', async () => {
    const clear = await sharp({ create: { width: 40, height: 40, channels: 4, background: '#0000' } })
      .png()
      .toBuffer()
    const kept = await convert(clear)
    assert.ok(kept.outcome.ok)
    assert.equal(kept.outcome.media_type, 'image/png')
    assert.equal((await sharp(Buffer.from(kept.outcome.data_base64, 'base64')).stats()).channels[3]!.max, 0)
    const noise = await sharp({
      create: {
        width: 400,
        height: 400,
        channels: 4,
        background: '#0000',
        noise: { type: 'gaussian', mean: 128, sigma: 60 },
      } as never,
    })
      .png()
      .toBuffer()
    const { outcome } = await convert(noise, undefined, { ...SMALL, maxSide: NONE, maxBytes: 20_000 })
    assert.ok(outcome.ok)
    assert.equal(outcome.media_type, 'image/jpeg')
    assert.ok(Buffer.byteLength(outcome.data_base64, 'base64') <= 20_000)
  })
})
