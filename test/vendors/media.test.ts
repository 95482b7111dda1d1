import assert from 'node:assert/strict'
import { readFileSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import sharp from 'sharp'
import { type MediaLimits, mediaLimits } from '#execution/providers/outgoing/media-limits.ts'
import { type Client, client, startApp, type TestApp } from '../support/app.ts'
import { gif, png } from '../support/images.ts'
import { scrape } from '../support/metrics.ts'
import { startProcess, type TestProcess } from '../support/processes.ts'
import { sentImage } from '../support/vendors/image-size.ts'
import { laneOf, processSettings, profiles, providerFields } from '../support/vendors/profiles.ts'
import { type Simulators, startSimulators } from '../support/vendors/server.ts'
import { startToolServer, type ToolServer } from './tool-server.ts'

const VENDORS = [
  'anthropic',
  'openai responses',
  'openai chat',
  'google',
  'bedrock claude',
  'xai',
  'groq',
  'custom mistral',
]

/** A striped image, which takes few bytes. */
const striped = (width: number, height: number, channels: 3 | 4 = 3) =>
  sharp(Buffer.alloc(width * height * channels, Buffer.from([200, 30, 90, 255, 10, 60])), {
    raw: { width, height, channels },
  })

/** An image that no format makes small. */
const noisy = (width: number, height: number) => {
  const bytes = Buffer.allocUnsafe(width * height * 3)
  let state = 1
  for (let at = 0; at < bytes.length; at++) bytes[at] = (state = (state * 48_271) % 2_147_483_647) & 255
  return sharp(bytes, { raw: { width, height, channels: 3 } })
}

/** A GIF that repeats its two frames. */
const animated = (width: number, height: number): Buffer => {
  const still = gif(width, height, 2)
  const loop = Buffer.from('21ff0b4e45545343415045322e300301000000', 'hex')
  return Buffer.concat([still.subarray(0, 19), loop, still.subarray(19)])
}

/** Images in a request of any vendor, in its order, as base64. */
function imagesIn(body: unknown): string[] {
  if (typeof body === 'string') return body.startsWith('data:image/') ? [body.slice(body.indexOf(',') + 1)] : []
  if (typeof body !== 'object' || body === null) return []
  const { type, data, bytes, mimeType } = body as Record<string, unknown>
  if (type === 'base64' && typeof data === 'string') return [data]
  if (typeof mimeType === 'string' && mimeType.startsWith('image/') && typeof data === 'string') return [data]
  if (typeof bytes === 'string') return [bytes]
  return Object.values(body).flatMap(imagesIn)
}

const shapes = (body: unknown) =>
  imagesIn(body).map(image => {
    const { type, longest } = sentImage(image)
    return `${type?.slice('image/'.length)} ${longest}`
  })

/** Kinds of providers by the limits that hold for them. */
const LIMITS: [string, MediaLimits][] = [
  ['anthropic, Claude at gateways', mediaLimits('anthropic', 'openai', '')],
  ['bedrock', mediaLimits('bedrock', 'openai', '')],
  ['google, vertex', mediaLimits('google', 'openai', '')],
  ['xai', mediaLimits('xai', 'openai', '')],
  ['groq', mediaLimits('groq', 'openai', '')],
  ['custom mistral', mediaLimits('custom', 'mistral', '')],
  ['custom lmstudio', mediaLimits('custom', 'lmstudio', '')],
  ['openai, azure and others', mediaLimits('openai', 'openai', '')],
]
const PAGE = 'docs/model-vendors.md'
const SECTION = /(?<=<!-- media limits -->\n)[\s\S]*?(?=\n- \*\*Converted)/

/** The limits as a table. */
function limitsText(): string {
  const bytes = (value: number) => `${(value / 1e6).toFixed(1).replace(/\.0$/, '')} MB`
  const rows = LIMITS.map(([name, { images, animated, maxSide, manyImages, maxPixels, ...more }]) => {
    const types = [...images].map(type => type.slice('image/'.length)).join(', ')
    const sides = manyImages ? `${maxSide}; ${manyImages.maxSide} with more than ${manyImages.above} images` : ''
    const size = sides || (maxPixels < Number.MAX_SAFE_INTEGER ? `${maxPixels} pixels in all` : '')
    const gif = images.has('image/gif') && !animated ? ', GIF without animation' : ''
    const cells = [`${types}${gif}`, size, bytes(more.maxBytes), bytes(more.totalBytes), bytes(more.maxFileBytes)]
    return `| ${[name, ...cells, `${more.source} ${more.date}`].join(' | ')} |`
  })
  const head = '| Providers | Images | Longest side in pixels | Image | Images of a request | PDF, audio | Source |'
  return `\n${[head, '|---|---|---|---|---|---|---|', ...rows].join('\n')}\n`
}

describe('images for vendors', function () {
  this.timeout(60_000)
  let app: TestApp
  let simulators: Simulators
  let tools: ToolServer
  let key: Client
  let worker: TestProcess
  const processes: TestProcess[] = []
  const agents = new Map<string, string>()
  let names = 0

  before(async () => {
    ;[simulators, tools, app] = await Promise.all([startSimulators(), startToolServer(), startApp()])
    const { env, flags } = processSettings(simulators.url)
    const start = (kind: 'web' | 'worker', ...args: string[]) => startProcess(kind, app.databaseUrl, env, args, flags)
    processes.push(...(await Promise.all([start('web'), start('worker', 'generation')])))
    worker = processes[1]!
    const project = await app.projectWith([
      'agents:*',
      'ai-providers:*',
      'files:*',
      'generations:*',
      'secrets:*',
      'tools:*',
      'traces:*',
    ])
    key = client(processes[0]!.url, project.key.token)
    for (const name of VENDORS) {
      const profile = profiles.find(each => each.name === name)!
      const secret = await key.post('/secrets', { name, value: laneOf(profile) })
      const provider = await key.post('/ai-providers', {
        ...providerFields(profile, simulators.url),
        secret_id: secret.body.id,
      })
      const tool = { name: 'pictures', type: 'mcp', mcp: { url: `${tools.url}/mcp` } }
      const agent = await key.post('/agents', { name, ai_provider_id: provider.body.id, tool_bindings: [{ tool }] })
      assert.equal(agent.status, 201, JSON.stringify(agent.body))
      agents.set(name, agent.body.id)
    }
  })
  after(async () => {
    await Promise.all(processes.map(({ kill }) => kill('SIGTERM')))
    await Promise.all([app?.close(), simulators?.close(), tools?.close()])
  })

  const upload = async (content_type: string, content: Buffer): Promise<string> => {
    const filename = `file-${++names}`
    const { body } = await key.post('/files/upload/base64', {
      filename,
      content_type,
      content: content.toString('base64'),
    })
    assert.ok(body.id, JSON.stringify(body))
    return body.id
  }
  /** Images that the worker has converted. */
  const conversions = async (): Promise<number> =>
    (await scrape(worker.url)).value('muster_image_conversions_total', { outcome: 'converted' }) ?? 0
  const laneFor = (vendor: string) => laneOf(profiles.find(({ name }) => name === vendor)!)
  const generate = async (vendor: string, body: object) => {
    const reply = await key.post(`/agents/${agents.get(vendor)}/generate?wait=true`, body)
    assert.equal(reply.body.output?.content, 'seen', JSON.stringify(reply.body).slice(0, 1000))
    assert.deepEqual(simulators.refusals(laneFor(vendor)), [])
    return simulators.calls(laneFor(vendor)).map(call => call.body)
  }
  /** The request of a turn with files of these types and contents, and the notes of its step. */
  const see = async (vendor: string, files: readonly (readonly [string, Buffer])[]) => {
    simulators.plan(laneFor(vendor), { text: 'seen' })
    const ids: string[] = []
    const uploaded = new Map<Buffer, string>()
    for (const [type, content] of files) {
      const id = uploaded.get(content) ?? (await upload(type, content))
      uploaded.set(content, id)
      ids.push(id)
    }
    const content = [{ type: 'text', text: 'See' }, ...ids.map(file_id => ({ type: 'file', file_id }))]
    const reply = await key.post(`/agents/${agents.get(vendor)}/generate?wait=true`, {
      messages: [{ role: 'user', content }],
    })
    assert.equal(reply.body.output?.content, 'seen', JSON.stringify(reply.body).slice(0, 1000))
    assert.deepEqual(simulators.refusals(laneFor(vendor)), [])
    const { body } = await key.get(`/generations/${reply.body.id}/transcript`)
    return { body: simulators.calls(laneFor(vendor))[0]!.body, notes: body.steps[0].notes ?? [] }
  }

  const expected: Record<string, string[]> = {
    anthropic: ['png 8000', 'png 30', 'gif 8', 'webp', 'jpeg 60', 'png 50'],
    'openai responses': ['png 9000', 'png 30', 'png 8', 'webp', 'jpeg 60', 'png 50'],
    'openai chat': ['png 9000', 'png 30', 'png 8', 'webp', 'jpeg 60', 'png 50'],
    google: ['png 9000', 'png 30', 'png 8', 'webp', 'jpeg 60', 'png 50'],
    'bedrock claude': ['png 8000', 'png 30', 'gif 8', 'webp', 'jpeg 60', 'png 50'],
    xai: ['png 9000', 'png 30', 'png 8', 'png 40', 'jpeg 60', 'png 50'],
    groq: ['png 9000', 'png 30', 'png 8', 'webp', 'jpeg 60', 'png 50'],
    'custom mistral': ['png 9000', 'png 30', 'png 8', 'webp', 'jpeg 60', 'png 50'],
  }

  for (const vendor of VENDORS)
    it(`${vendor}: images are scaled and converted to an accepted format`, async () => {
      const files = [
        ['image/png', await striped(9000, 40).png().toBuffer()],
        [
          'image/svg+xml',
          Buffer.from(
            '<svg xmlns="http://www.w3.org/2000/svg" width="30" height="20"><rect width="9" height="9"/></svg>',
          ),
        ],
        ['image/gif', animated(8, 8)],
        ['image/webp', await striped(40, 40).webp().toBuffer()],
        // Declared as another type than its content has.
        ['image/png', await striped(60, 40).jpeg().toBuffer()],
        ['image/tiff', await striped(50, 40).tiff().toBuffer()],
      ] as const
      const { body, notes } = await see(vendor, files)
      assert.deepEqual(
        shapes(body).map(shape => shape.replace('webp 0', 'webp')),
        expected[vendor],
      )
      const changed = notes.filter(({ kind }: { kind: string }) => kind === 'media_changed')
      const unchanged = ['png 9000', null, 'gif 8', 'webp'].filter((shape, at) => expected[vendor]![at] === shape)
      assert.equal(changed.length, files.length - unchanged.length, JSON.stringify(notes))
      if (expected[vendor]![0] === 'png 8000')
        assert.match(
          changed[0].message,
          /^image\/png of 9000 × 40 pixels and \d+ KB, sent as image\/png of 8000 × 35 pixels/,
        )
    })

  it('the page has the limits of the vendors', () => {
    const page = readFileSync(PAGE, 'utf8')
    if (process.env.RECORD_MATRIX) writeFileSync(PAGE, page.replace(SECTION, limitsText()))
    else assert.equal(SECTION.exec(page)?.[0], limitsText())
  })

  it('an image with more bytes than the vendor takes is made smaller, and a PDF is named', async () => {
    const large = await noisy(1200, 1100).png({ compressionLevel: 0 }).toBuffer()
    assert.ok(large.length > 3_900_000)
    const pdf = Buffer.concat([Buffer.from('%PDF-1.4\n'), Buffer.alloc(5_000_000, ' '), Buffer.from('\n%%EOF')])
    const { body, notes } = await see('bedrock claude', [
      ['image/png', large],
      ['application/pdf', pdf],
    ])
    assert.deepEqual(shapes(body), ['jpeg 1200'])
    assert.ok(
      JSON.stringify(body).includes('[application/pdf, 4883 KB, not shown: the vendor takes at most 4500000 bytes]'),
    )
    assert.deepEqual(
      notes.map(({ kind }: { kind: string }) => kind),
      ['media_changed', 'media_left_out'],
    )
    // 4 MB of base64 in all.
    const two = await see('groq', [
      ['image/png', large],
      ['image/png', await noisy(1201, 1100).png({ compressionLevel: 0 }).toBuffer()],
    ])
    assert.equal(imagesIn(two.body).length, 2)
  })

  it('more than 20 images are scaled to the lower limit of Claude', async () => {
    const wide = await striped(2400, 20).png().toBuffer()
    for (const vendor of ['anthropic', 'bedrock claude']) {
      const few = await see(vendor, Array(20).fill(['image/png', wide]))
      assert.deepEqual(new Set(shapes(few.body)), new Set(['png 2400']))
      const many = await see(vendor, Array(21).fill(['image/png', wide]))
      assert.deepEqual(shapes(many.body), Array(21).fill('png 2000'))
    }
  })

  it('images of results are converted once, and are the same bytes in each step and turn', async () => {
    const scan = await striped(9000, 30).tiff({ compression: 'lzw' }).toBuffer()
    const picture = { type: 'image', mimeType: 'image/tiff', data: scan.toString('base64') }
    const blob = {
      type: 'resource',
      resource: { uri: 'a:b', mimeType: 'image/bmp', blob: Buffer.from('BM').toString('base64') },
    }
    tools.returns([{ type: 'text', text: 'Two pictures' }, picture, blob])
    const plan = [
      { tool_calls: [{ name: '*', args: {} }] },
      { tool_calls: [{ name: '*', args: {} }] },
      { text: 'seen' },
    ]
    const before = await conversions()
    for (const vendor of ['anthropic', 'bedrock claude', 'openai responses', 'openai chat']) {
      for (const _ of [1, 2]) {
        simulators.plan(laneFor(vendor), plan)
        const bodies = await generate(vendor, { prompt: 'Look' })
        const images = bodies.map(imagesIn)
        assert.deepEqual(
          images.map(({ length }) => length),
          [0, 1, 2],
        )
        assert.equal(new Set(images.flat()).size, 1)
        assert.ok(JSON.stringify(bodies[1]).includes('[image/bmp, 1 KB, not shown: image/bmp cannot be converted]'))
      }
    }
    // To 8,000 pixels for two vendors, with their limits of bytes, and to PNG for the others.
    assert.equal((await conversions()) - before, 3)
    tools.returns(null)
  })

  it('hostile images become texts, and do not reach files, hosts or the process of the worker', async () => {
    const seen: string[] = []
    const host = createServer((request, response) => {
      seen.push(request.url ?? '')
      response.end()
    })
    await new Promise<void>(resolve => host.listen(0, '127.0.0.1', resolve))
    const url = `http://127.0.0.1:${(host.address() as AddressInfo).port}`
    const file = `file://${process.cwd()}/docs/images/console-board.png`
    const svg = (inner: string, more = '') =>
      Buffer.from(
        `<?xml version="1.0"?>${more}<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" xmlns:xi="http://www.w3.org/2001/XInclude" width="40" height="40">${inner}</svg>`,
      )
    const picture = (href: string) => `<image href="${href}" xlink:href="${href}" width="40" height="40"/>`
    const blank = [
      svg(picture(`${url}/image.png`)),
      svg(picture(file)),
      svg(picture('docs/images/console-board.png')),
      svg(
        `<xi:include href="${url}/included"/><use href="${url}/used.svg#a"/><style>@import url(${url}/style.css);</style>`,
      ),
      svg(picture(`${url}/entity`), `<!DOCTYPE svg [<!ENTITY x SYSTEM "${url}/dtd">]>`),
    ]
    const { body } = await see(
      'anthropic',
      blank.map(content => ['image/svg+xml', content] as const),
    )
    const drawn = await Promise.all(imagesIn(body).map(image => sharp(Buffer.from(image, 'base64')).stats()))
    assert.equal(drawn.length, blank.length)
    for (const { channels } of drawn) assert.equal(channels[3]!.max, 0, 'nothing is drawn')
    assert.deepEqual(seen, [])

    const whole = await noisy(90, 90).png().toBuffer()
    const bomb = png(60_000, 60_000, Buffer.alloc(100_000))
    const entities = `<!DOCTYPE svg [<!ENTITY a "aaaaaaaaaa">${'bcdefgh'
      .split('')
      .map((name, at) => `<!ENTITY ${name} "${`&${'abcdefgh'[at]};`.repeat(10)}">`)
      .join('')}]>`
    const hostile: readonly (readonly [string, Buffer, string])[] = [
      ['image/png', bomb, 'pixel limit'],
      ['image/png', whole.subarray(0, whole.length - 2000), 'it cannot be decoded'],
      ['image/png', Buffer.from('<html><script>alert(1)</script></html>'), 'it is not a readable image'],
      [
        'image/heic',
        Buffer.from('000000186674797068656963000000006d69663168656963', 'hex'),
        'image/heic cannot be converted',
      ],
      ['image/svg+xml', svg('<text>&h;</text>', entities), 'it cannot be decoded'],
      [
        'image/svg+xml',
        Buffer.from('<svg xmlns="http://www.w3.org/2000/svg" width="60000" height="60000"/>'),
        'pixel limit',
      ],
    ]
    const refused = await see(
      'anthropic',
      hostile.map(([type, content]) => [type, content] as const),
    )
    assert.deepEqual(imagesIn(refused.body), [])
    const left = refused.notes.map(({ kind, message }: { kind: string; message: string }) => `${kind}: ${message}`)
    assert.equal(left.length, hostile.length)
    for (const [at, [type, , reason]] of hostile.entries()) {
      assert.ok(left[at].startsWith(`media_left_out: ${type}`), left[at])
      assert.ok(left[at].includes(reason), left[at])
    }
    host.close()
    // Decoders of images run in separate processes.
    assert.ok(!readFileSync(`/proc/${worker.pid}/maps`, 'utf8').includes('libvips'))
  })

  it('photos are sent upright and in sRGB', async () => {
    const photo = striped(8400, 200)
    const files = [
      ['image/jpeg', await photo.clone().jpeg().withMetadata({ orientation: 6 }).toBuffer()],
      ['image/jpeg', await photo.clone().toColourspace('cmyk').jpeg().toBuffer()],
      ['image/png', await photo.clone().toColourspace('rgb16').png().toBuffer()],
    ] as const
    const { body } = await see('anthropic', files)
    const sent = await Promise.all(imagesIn(body).map(image => sharp(Buffer.from(image, 'base64')).metadata()))
    assert.deepEqual(
      sent.map(({ width, height, space, depth }) => [width, height, space, depth]),
      [
        [190, 8000, 'srgb', 'uchar'],
        [8000, 190, 'srgb', 'uchar'],
        [8000, 190, 'srgb', 'uchar'],
      ],
    )
  })

  it('without the library for this platform, images that do not fit are named', async () => {
    const hook = `import { registerHooks } from 'node:module'
      registerHooks({ resolve: (name, about, next) => next(name === 'sharp' ? 'missing' : name, about) })`
    await worker.kill('SIGTERM')
    const { env, flags } = processSettings(simulators.url)
    const without = ['--import', `data:text/javascript,${encodeURIComponent(hook)}`]
    worker = await startProcess('worker', app.databaseUrl, env, ['generation'], [...flags, ...without])
    processes.push(worker)
    const { body, notes } = await see('anthropic', [
      ['image/png', await striped(9000, 41).png().toBuffer()],
      ['image/png', await striped(90, 41).png().toBuffer()],
    ])
    assert.deepEqual(shapes(body), ['png 90'])
    assert.equal(notes.length, 1)
    assert.match(notes[0].message, /^image\/png, \d+ KB, not shown: the library is not installed$/)
    assert.equal((await scrape(worker.url)).value('muster_image_conversions_total', { outcome: 'unavailable' }), 1)
  })
})
