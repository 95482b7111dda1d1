import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import http from 'node:http'
import os from 'node:os'
import path from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { promisify } from 'node:util'
import { brotliDecompressSync, gunzipSync } from 'node:zlib'
import { Validator } from '@seriousme/openapi-schema-validator'
import { Ajv2020 } from 'ajv/dist/2020.js'
import addFormats from 'ajv-formats'
import { workerCommands } from '#core/api/commands.ts'
import { FIELD_DESCRIPTIONS } from '#core/api/field-descriptions.ts'
import { flatten } from '#core/api/flatten.ts'
import { operations } from '#core/api/operation.ts'
import { startApp, type TestApp, type TestProject } from '../support/app.ts'
import { type Described, describedOperations, withoutSharing } from '../support/fuzz.ts'

type Json = Record<string, any>

const root = path.resolve(import.meta.dirname, '../..')
const run = promisify(execFile)

/** Bytes of the document: plain, and as sent to clients that accept an encoding. */
const MOST_BYTES = { identity: 1_310_000, br: 122_000, gzip: 166_000 }

describe('the description', function () {
  this.timeout(180_000)
  let app: TestApp
  let project: TestProject
  let text: string
  let document: Json
  let described: Described[]
  let directory: string
  before(async () => {
    app = await startApp()
    project = await app.project()
    text = await (await fetch(`${app.url}/openapi.json`)).text()
    document = JSON.parse(text)
    described = describedOperations(withoutSharing(document))
    directory = mkdtempSync(path.join(os.tmpdir(), 'description-'))
    writeFileSync(path.join(directory, 'openapi.json'), text)
  })
  after(async () => {
    rmSync(directory, { recursive: true, force: true })
    await app?.close()
  })

  const target = (ref: string, within = document): Json =>
    ref
      .slice(2)
      .split('/')
      .reduce((node: Json, key) => node[key.replaceAll('~1', '/').replaceAll('~0', '~')], within)
  const resolved = (schema: Json, within = document): Json =>
    schema?.$ref ? resolved(target(schema.$ref, within), within) : schema

  describe('of every operation', () => {
    it('says more than its summary does, as its tag and the tag of every other one do', () => {
      const silent = described.filter(({ operation }) => {
        const { summary, description = '' } = operation
        return description.length < 20 || summary.includes(description)
      })
      assert.deepEqual(
        silent.map(({ id }) => id),
        [],
      )
      for (const { name, description } of document.tags) assert.ok(description?.length > 10, name)
    })

    it('has its command, and of an alias the name of its original', () => {
      const known = new Map(workerCommands.all().map(({ id, words }) => [id, words]))
      for (const { id, operation } of described) assert.deepEqual(operation['x-command'], known.get(id), id)
      const aliases = described.filter(({ operation }) => operation['x-alias-of'])
      assert.ok(aliases.length > 0)
      for (const { path: at, operation } of aliases) {
        const original = described.find(({ id }) => id === operation['x-alias-of']) as Described
        assert.equal(original.path.replace('/project-keys', '/api-keys'), at)
      }
    })

    it('has its flat call where it has a body, whose fields without a schema are parameters and properties of that name', () => {
      for (const { id, operation } of described) {
        const call = flatten(operations.get(id))
        if (!call || !operation.requestBody) {
          assert.equal(operation['x-flat'], undefined, id)
          continue
        }
        const flat = operation['x-flat'] as Json[]
        assert.deepEqual(
          flat.map(({ name, in: part, required = false }) => ({ name, in: part, required })),
          [...call.fields.values()]
            .filter(({ isAlias }) => !isAlias)
            .map(({ name, in: part, required }) => ({ name, in: part, required })),
          id,
        )
        const spellings = flat.map(({ name }) => name.replaceAll('_', '').toLowerCase())
        assert.equal(new Set(spellings).size, flat.length, id)
        const properties = resolved(operation.requestBody?.content['application/json']?.schema ?? {}).properties ?? {}
        for (const { name, in: part, schema } of flat)
          assert.ok(
            schema ??
              (part === 'body'
                ? properties[name]
                : operation.parameters.some((each: Json) => each.name === name && each.in === part)),
            `${id} ${name}`,
          )
      }
    })

    it('states how lists are paged and which columns identify their rows', () => {
      const lists = described.filter(({ operation }) => operation['x-paged'])
      assert.ok(lists.length > 80)
      assert.equal(lists.find(({ id }) => id === 'listActivity')?.operation['x-paged'], 'cursor')
      for (const { id, operation } of lists) {
        const schema = operation.responses[200].content['application/json'].schema as Json
        const item = resolved(resolved(schema).properties.data.items)
        const columns = schema['x-columns'] as string[] | undefined
        if (!item.properties) continue
        assert.ok(columns && columns.length >= 1 && columns.length <= 6, id)
        for (const column of columns) assert.ok(item.properties[column], `${id} ${column}`)
      }
    })

    it('states how long work is waited for: the statuses match the polled ones', () => {
      const ids = new Set(described.map(({ id }) => id))
      for (const { id, operation } of described) {
        const asks = flatten(operations.get(id))?.fields.has('wait') ?? false
        assert.equal(operation['x-wait'] !== undefined, asks, id)
        if (!asks) continue
        const { parameter, default: byDefault, running, done, failed, paused, poll } = operation['x-wait']
        assert.deepEqual([parameter, typeof byDefault], ['wait', 'boolean'], id)
        assert.ok(ids.has(poll), `${id} ${poll}`)
        const polled = described.find(each => each.id === poll) as Described
        const record = resolved(polled.operation.responses[200].content['application/json'].schema)
        const statuses = resolved(record.properties?.status ?? record.allOf?.[0]?.properties?.status).enum
        assert.deepEqual([...running, ...done, ...failed, ...paused].sort(), [...statuses].sort(), id)
      }
    })

    it('names the check of a write that can be tried without it', () => {
      const ids = described.map(({ id }) => id)
      const checks = described.flatMap(({ id, operation }) =>
        operation['x-dry-run'] ? [[id, operation['x-dry-run']]] : [],
      )
      for (const [id, check] of checks) assert.ok(check === 'dry_run' || ids.includes(check), `${id} ${check}`)
      assert.deepEqual(Object.fromEntries(checks), {
        checkAiProvider: 'estimateAiProviderCheck',
        createFormation: 'planFormation',
        createMemoryEntry: 'dry_run',
        createOrchestration: 'validateOrchestration',
        createPlaybook: 'validatePlaybook',
        purgeActorContent: 'dry_run',
        purgeGenerationContent: 'dry_run',
        purgeTraceContent: 'dry_run',
        replaceFormation: 'planFormation',
        updateFormation: 'planFormation',
        updateOrchestration: 'validateOrchestration',
        updatePlaybook: 'validatePlaybook',
      })
    })

    it('marks what holds a secret', () => {
      const isMarked = (schema: Json): boolean =>
        schema['x-secret'] === true || (schema.$ref && isMarked(target(schema.$ref)))
      const marked = Object.entries<Json>(document.components.schemas).flatMap(([name, { properties = {} }]) =>
        Object.entries<Json>(properties).flatMap(([field, schema]) => (isMarked(schema) ? `${name}.${field}` : [])),
      )
      for (const field of [
        'Credentials.password',
        'PasswordInput.new_password',
        'SecretInput.value',
        'ProjectKeyWithSecret.key',
        'WebhookWithSecret.secret',
        'TriggerWithSecret.secret',
      ])
        assert.ok(marked.includes(field), `${field} of ${marked}`)
    })
  })

  describe('of every field', () => {
    /** Fields with their names and places, of everything that is sent or answered. */
    function fieldsIn(part: unknown, at: string): { at: string; name: string; schema: Json }[] {
      if (Array.isArray(part)) return part.flatMap((each, index) => fieldsIn(each, `${at}/${index}`))
      if (typeof part !== 'object' || part === null) return []
      return Object.entries<any>(part).flatMap(([key, value]) => {
        if (['example', 'default', 'const', 'enum', 'x-flat'].includes(key)) return []
        if (key !== 'properties') return fieldsIn(value, `${at}/${key}`)
        return Object.entries<Json>(value).flatMap(([name, schema]) => [
          { at: `${at}/${name}`, name, schema },
          ...fieldsIn(schema, `${at}/${name}`),
        ])
      })
    }
    const fields = () => fieldsIn([document.paths, document.components], '')
    const describes = (schema: Json): boolean =>
      schema.description !== undefined ||
      (schema.$ref !== undefined && describes(target(schema.$ref))) ||
      [schema.anyOf, schema.oneOf, schema.allOf].flat().some(each => each && describes(each))

    it('states its content', () => {
      const all = fields()
      assert.ok(all.length > 2000)
      assert.deepEqual(
        all.filter(({ schema }) => !describes(schema)).map(({ at }) => at),
        [],
      )
    })

    it('with a description that follows from its name only where there is such a field', () => {
      const used = new Set(
        fields().flatMap(({ name, schema }) => [schema, resolved(schema)].map(each => `${name}: ${each.description}`)),
      )
      const unused = Object.entries(FIELD_DESCRIPTIONS).filter(([name, text]) => !used.has(`${name}: ${text}`))
      assert.deepEqual(unused, [])
    })
  })

  describe('of streams', () => {
    it('names each event once, distinguishes them by their names, and marks the last ones', () => {
      const streaming = operations.all().filter(({ stream }) => stream)
      assert.ok(streaming.length >= 9)
      for (const { id, body } of described.map(each => ({ ...each, body: operations.get(each.id).body }))) {
        const { stream } = operations.get(id)
        const { operation } = described.find(each => each.id === id) as Described
        const content = operation.responses[200]?.content ?? {}
        assert.equal(content['text/event-stream'] !== undefined, stream !== undefined, id)
        if (!stream) continue
        const union = resolved(content['text/event-stream'].schema)
        const { events, last, resume, selected_by } = operation['x-stream']
        assert.deepEqual(Object.keys(union.discriminator.mapping), events, id)
        assert.equal(union.oneOf.length, events.length, id)
        for (const event of last) assert.ok(events.includes(event), id)
        assert.ok(resume === null || described.some(each => each.id === resume), id)
        const isChosen = body !== null
        assert.deepEqual(selected_by, isChosen ? { in: 'body', name: 'stream' } : null, id)
        assert.equal(content['application/json'] !== undefined, isChosen, id)
        for (const branch of union.oneOf) {
          const { properties, required } = resolved(branch)
          assert.equal(typeof properties.event.const, 'string')
          assert.deepEqual(required, ['event', 'data'])
        }
      }
    })

    it('gives exports as lines of records', () => {
      const exports = described.filter(({ operation }) => operation.responses[200]?.content?.['application/x-ndjson'])
      assert.ok(exports.length >= 6)
      for (const { id, operation } of exports) {
        const content = operation.responses[200].content
        const others = id === 'exportDatasetItems' ? ['text/csv'] : []
        assert.deepEqual(Object.keys(content), ['application/x-ndjson', ...others], id)
        assert.equal(resolved(content['application/x-ndjson'].schema).type, 'object', id)
      }
    })
  })

  it('has each line of an export of a dataset by its schema, and CSV on request', async () => {
    const { id } = (await project.key.post('/datasets', { name: 'exported' })).body
    const item = { input: [{ role: 'user', content: 'hello' }], expected_output: 'hi', metadata: { a: 1 } }
    await project.key.post(`/datasets/${id}/items`, item)
    const exported = (format: string) =>
      fetch(`${app.url}/api/v1/datasets/${id}/items/export?format=${format}`, {
        headers: { authorization: `Bearer ${project.key.token}` },
      })
    const { operation } = described.find(each => each.id === 'exportDatasetItems') as Described
    const { content } = operation.responses[200]
    const ajv = new Ajv2020({ strict: false })
    const validate = ajv.addSchema(document, 'document').compile({
      $ref: `document${content['application/x-ndjson'].schema.$ref}`,
    })
    const lines = (await (await exported('jsonl')).text()).trim().split('\n')
    assert.deepEqual(
      lines.map(line => JSON.parse(line)),
      [item],
    )
    assert.ok(validate(JSON.parse(lines[0])), ajv.errorsText(validate.errors))
    const csv = await exported('csv')
    assert.match(csv.headers.get('content-type') as string, /^text\/csv/)
    assert.equal(content['text/csv'].example.split('\r\n')[0], (await csv.text()).split('\r\n')[0])
  })

  it('takes true, false, 1 and 0 for the booleans in queries, and nothing else', async () => {
    const flags = described.flatMap(({ id, operation }) =>
      ((operation.parameters ?? []) as Json[])
        .filter(each => each.in === 'query' && resolved(each.schema).type === 'boolean')
        .map(each => `${id} ${each.name}`),
    )
    assert.ok(flags.length > 20, `${flags.length}`)
    assert.doesNotMatch(text, /"enum":\["true","false"\]/)
    await project.key.post('/webhooks', { name: 'on', url: 'https://shop.example/a', events: ['*'] })
    await project.key.post('/webhooks', { name: 'off', url: 'https://shop.example/b', events: ['*'], active: false })
    const listed = async (value: string) => {
      const { status, body } = await project.key.get(`/webhooks?active=${value}`)
      return status === 200 ? body.data.map(({ name }: Json) => name) : [status, body.error.meta.problems[0].path]
    }
    for (const value of ['true', '1']) assert.deepEqual(await listed(value), ['on'])
    for (const value of ['false', '0']) assert.deepEqual(await listed(value), ['off'])
    for (const value of ['yes', 'TRUE', '2', '']) assert.deepEqual(await listed(value), [400, 'active'])
  })

  it('takes digits for the integers in queries, and nothing else', async () => {
    const texts = described.flatMap(({ id, operation }) =>
      ((operation.parameters ?? []) as Json[])
        .map(each => resolved(each))
        .flatMap(each => {
          const { type, pattern = '' } = resolved(each.schema)
          return each.in === 'query' && type === 'string' && pattern.includes('\\d') ? [`${id} ${each.name}`] : []
        }),
    )
    assert.deepEqual(texts, [])
    const read = async (limit: string) => {
      const { status, body } = await project.key.get(`/activity?limit=${limit}`)
      return [status, body.error?.meta.problems[0].path]
    }
    for (const limit of ['2', '0002', '1000']) assert.deepEqual(await read(limit), [200, undefined])
    for (const limit of ['0', '-1', '1.5', '1e1', 'x', '']) assert.deepEqual(await read(limit), [400, 'limit'])
  })

  describe('has an example', () => {
    /** The document of the reference, which has the examples of responses too. */
    let reference: Json
    before(async () => {
      reference = (await app.anonymous.get('//docs/openapi.json')).body
    })
    const bodies = (within: Json) =>
      describedOperations(within).flatMap(({ id, path: at, method, operation }) => {
        const parts: [string, Json, string][] = [
          ...(operation.requestBody
            ? [['request', operation.requestBody, 'requestBody'] as [string, Json, string]]
            : []),
          ...Object.entries<Json>(operation.responses)
            .filter(([status]) => status < '300')
            .map(([status, response]): [string, Json, string] => [status, response, `responses/${status}`]),
        ]
        const escaped = at.replaceAll('~', '~0').replaceAll('/', '~1')
        return parts.flatMap(([what, part, where]) => {
          const from = part.$ref ?? `#/paths/${escaped}/${method.toLowerCase()}/${where}`
          return Object.entries<Json>(resolved(part, within).content ?? {}).map(([type, content]) => ({
            what: `${id} ${what} ${type}`,
            content,
            schema: `${from}/content/${type.replaceAll('/', '~1')}/schema`,
          }))
        })
      })

    it('of every body, valid by its schema', () => {
      const ajv = new Ajv2020({ strict: false, allErrors: true })
      addFormats.default(ajv)
      ajv.addFormat('binary', true)
      ajv.addSchema(reference, 'document')
      const all = bodies(reference)
      assert.ok(all.length > 600)
      for (const { what, content, schema } of all) {
        // The items of a list have their own.
        if (!('example' in content) && content.schema['x-columns']) continue
        assert.ok('example' in content, what)
        const [, ...segments] = schema.split('/')
        const validate = ajv.compile({ $ref: `document#/${segments.map(encodeURIComponent).join('/')}` })
        assert.ok(validate(content.example), `${what} ${ajv.errorsText(validate.errors)}`)
      }
    })

    it('of every request without the reference', () => {
      const requests = bodies(document).filter(({ what }) => what.split(' ')[1] === 'request')
      assert.ok(requests.length > 200)
      for (const { what, content } of requests) assert.ok('example' in content, what)
    })

    it('of every request that the service itself takes for valid', () => {
      for (const { id, operation } of described) {
        const { body, receive } = operations.get(id)
        const content = operation.requestBody?.content['application/json']
        if (!body || receive || !content) continue
        const { success, error } = body.safeParse(content.example)
        assert.ok(success, `${id} ${JSON.stringify(content.example)} ${error}`)
      }
    })

    it('with the ids of one project, each kind having one', () => {
      const ids = new Set(
        [...JSON.stringify(reference).matchAll(/"([a-z_]+_[0-9a-hjkmnp-tv-z]{26})"/g)].map(([, id]) => id),
      )
      const prefixes = [...ids].map(id => id.slice(0, -27))
      assert.ok(prefixes.length > 40)
      assert.equal(new Set(prefixes).size, prefixes.length)
    })
  })

  it('is small and sent compressed, under one entity tag', async () => {
    const { port } = new URL(app.url)
    const sent = (encoding: string) =>
      new Promise<{ tag?: string; bytes: Buffer }>((resolve, reject) => {
        const get = http.get({ port, path: '/openapi.json', headers: { 'accept-encoding': encoding } }, response => {
          assert.equal(response.headers['content-encoding'], encoding === 'identity' ? undefined : encoding)
          assert.match(response.headers.vary as string, /accept-encoding/i)
          const parts: Buffer[] = []
          response.on('data', part => parts.push(part))
          response.on('end', () => resolve({ tag: response.headers.etag, bytes: Buffer.concat(parts) }))
        })
        get.on('error', reject)
      })
    const decoded = {
      identity: (bytes: Buffer) => bytes,
      br: brotliDecompressSync,
      gzip: gunzipSync,
    }
    const tags = new Set<string | undefined>()
    for (const [encoding, most] of Object.entries(MOST_BYTES)) {
      const { tag, bytes } = await sent(encoding)
      tags.add(tag)
      assert.ok(bytes.length <= most, `${encoding} ${bytes.length}`)
      assert.equal(decoded[encoding as keyof typeof decoded](bytes).toString(), text)
    }
    assert.equal(tags.size, 1)
  })

  it('is compressed once for concurrent clients, while other requests are answered', async () => {
    const other = await startApp()
    try {
      const url = `${other.url}/openapi.json`
      const before = process.cpuUsage().user
      const asked = Array.from({ length: 8 }, () => fetch(url, { headers: { 'accept-encoding': 'br' } }))
      let isDone = false
      const done = Promise.all(asked.map(async each => (await each).arrayBuffer())).then(all => {
        isDone = true
        return all
      })
      let answered = 0
      while (!isDone) {
        assert.equal((await other.anonymous.get('//healthz')).status, 200)
        answered++
        await sleep(50)
      }
      await done
      // Each compression takes 2 to 3 s of processor time; eight would take 16 or more.
      assert.ok(process.cpuUsage().user - before < 12e6)
      // On the event loop a compression would let one or two requests through.
      assert.ok(answered >= 5, `${answered}`)
    } finally {
      await other.close()
    }
  })

  describe('passes', () => {
    /** Rules whose warnings the documentation explains. */
    const KNOWN = ['info-contact', 'no-ambiguous-paths', 'no-illogical-composition-keywords', 'operation-4xx-response']

    it('the validator of OpenAPI 3.1', async () => {
      const { valid, errors } = await new Validator().validate(structuredClone(document))
      assert.ok(valid, JSON.stringify(errors))
    })

    it('Redocly and Spectral, with no warning that the documentation does not name', async () => {
      const documented = readFileSync(path.join(root, 'docs/api.md'), 'utf8')
      for (const rule of KNOWN) assert.ok(documented.includes(`\`${rule}\``), rule)
      writeFileSync(path.join(directory, 'redocly.yaml'), 'extends: [recommended]\n')
      writeFileSync(path.join(directory, 'spectral.yaml'), 'extends: ["spectral:oas"]\n')
      const lint = async (bin: string, args: string[]) => {
        const given = { cwd: directory, maxBuffer: 64 * 1024 * 1024, env: { ...process.env, REDOCLY_TELEMETRY: 'off' } }
        const { stdout } = await run(
          process.execPath,
          [path.join(root, 'node_modules/.bin', bin), ...args],
          given,
        ).catch(error => error)
        return JSON.parse(stdout)
      }
      const [redocly, spectral] = await Promise.all([
        lint('redocly', [
          'lint',
          'openapi.json',
          '--config',
          'redocly.yaml',
          '--format',
          'json',
          '--max-problems',
          '1000',
        ]),
        lint('spectral', ['lint', 'openapi.json', '-r', 'spectral.yaml', '-f', 'json', '-q']),
      ])
      const found = [
        ...redocly.problems.map(({ ruleId, severity, message }: Json) => ({ rule: ruleId, severity, message })),
        ...spectral.map(({ code, severity, message }: Json) => ({
          rule: code,
          severity: severity === 0 ? 'error' : 'warn',
          message,
        })),
      ]
      const unknown = found.filter(({ rule, severity }) => severity === 'error' || !KNOWN.includes(rule))
      assert.deepEqual(unknown.slice(0, 5), [])
      assert.deepEqual([...new Set(found.map(({ rule }) => rule))].sort(), KNOWN)
    })
  })
})
