import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import { Ajv } from 'ajv'
import { parse } from 'yaml'
import { loadSettings } from '#config.ts'
import { settingRows } from '#core/base/declared-settings.ts'
import { root } from '../support/processes.ts'

const read = (file: string) => fs.readFileSync(path.join(root, file), 'utf8')
const ajv = new Ajv({ allErrors: true, strict: true })

const text = { type: 'string' }
const exact = (properties: object, required: string[]) => ({
  type: 'object',
  properties,
  required,
  additionalProperties: false,
})

/** The fields that app.json uses, by https://devcenter.heroku.com/articles/app-json-schema as of 24 January 2024. */
const APP = exact(
  {
    name: text,
    description: text,
    stack: text,
    buildpacks: { type: 'array', items: exact({ url: text }, ['url']) },
    addons: { type: 'array', items: exact({ plan: text, options: { type: 'object' } }, ['plan']) },
    formation: {
      type: 'object',
      additionalProperties: exact({ quantity: { type: 'integer' }, size: text }, ['quantity']),
    },
    env: {
      type: 'object',
      additionalProperties: exact(
        { description: text, value: text, required: { type: 'boolean' }, generator: { const: 'secret' } },
        ['description'],
      ),
    },
  },
  ['name', 'formation', 'addons', 'env'],
)

const variable = {
  oneOf: [
    exact({ fromGroup: text }, ['fromGroup']),
    exact({ key: text, value: text }, ['key', 'value']),
    exact({ key: text, generateValue: { const: true } }, ['key', 'generateValue']),
    exact(
      { key: text, fromDatabase: exact({ name: text, property: { const: 'connectionString' } }, ['name', 'property']) },
      ['key', 'fromDatabase'],
    ),
    exact(
      {
        key: text,
        fromService: exact({ type: { const: 'web' }, name: text, envVarKey: text }, ['type', 'name', 'envVarKey']),
      },
      ['key', 'fromService'],
    ),
  ],
}
const variables = { type: 'array', items: variable }

/** The fields that render.yaml uses, by https://render.com/docs/blueprint-spec as of November 2026. */
const BLUEPRINT = exact(
  {
    databases: {
      type: 'array',
      items: exact(
        {
          name: text,
          plan: text,
          postgresMajorVersion: { enum: ['15', '16', '17', '18'] },
          ipAllowList: { type: 'array' },
        },
        ['name'],
      ),
    },
    envVarGroups: { type: 'array', items: exact({ name: text, envVars: variables }, ['name', 'envVars']) },
    services: {
      type: 'array',
      items: exact(
        {
          type: { enum: ['web', 'worker'] },
          name: text,
          runtime: { const: 'docker' },
          plan: text,
          dockerCommand: text,
          preDeployCommand: text,
          healthCheckPath: text,
          maxShutdownDelaySeconds: { type: 'integer', minimum: 1, maximum: 300 },
          envVars: variables,
        },
        ['type', 'name', 'runtime', 'envVars'],
      ),
    },
  },
  ['databases', 'services'],
)

const settings = settingRows()
const known = (names: string[]) => names.filter(name => !settings.some(each => each.name === name))
const required = settings.filter(each => each.required_in_production).map(({ name }) => name)

/** What platforms set for each process, and a value of each format that they generate. */
const HEX = 'ab'.repeat(32)
const BASE64 = Buffer.alloc(32, 7).toString('base64')

describe('manifests of platforms', () => {
  it('app.json has the fields of the vendor, settings that there are, and those that production requires', () => {
    const app = JSON.parse(read('app.json'))
    assert.ok(ajv.validate(APP, app), JSON.stringify(ajv.errors))
    // A variable of the driver of the database: the address that the platform sets has no parameter for TLS.
    assert.deepEqual(known(Object.keys(app.env)), ['PGSSLMODE'])
    for (const name of required) assert.ok(name in app.env, name)
    assert.equal(app.env.JWT_SECRET.generator, 'secret')
    const processes = [...read('Procfile').matchAll(/^(\w+):/gm)].map(([, name]) => name)
    assert.deepEqual(processes, ['release', ...Object.keys(app.formation)])
    assert.match(app.addons[0].plan, /^heroku-postgresql:/)
    const values = Object.fromEntries(Object.entries<any>(app.env).map(([name, { value }]) => [name, value ?? HEX]))
    loadSettings({
      ...values,
      BASE_URL: 'https://app.example',
      DATABASE_URL: 'postgres://a:b@db.example/c',
      PORT: '8080',
    })
  })

  it('render.yaml has the fields of the vendor, the programs of the image, and the same secrets in both', () => {
    const blueprint = parse(read('render.yaml'))
    assert.ok(ajv.validate(BLUEPRINT, blueprint), JSON.stringify(ajv.errors))
    const [group] = blueprint.envVarGroups
    const [web, worker] = blueprint.services
    const [entryPoint] = JSON.parse(/^ENTRYPOINT (.+)$/m.exec(read('Dockerfile'))?.[1] as string)
    assert.deepEqual(
      [web.preDeployCommand, web.dockerCommand, worker.dockerCommand],
      ['migrate', 'web', 'worker'].map(name => `${entryPoint} ${name}`),
    )
    assert.deepEqual(web.envVars, worker.envVars)
    const given = [...group.envVars, ...web.envVars.slice(1)]
    assert.deepEqual(web.envVars[0], { fromGroup: group.name })
    assert.deepEqual(known(given.map(({ key }) => key)), [])
    for (const name of required)
      assert.ok(
        given.some(({ key }) => key === name),
        name,
      )
    for (const name of ['JWT_SECRET', 'SECRETS_ENCRYPTION_KEY'])
      assert.deepEqual(
        group.envVars.find(({ key }: { key: string }) => key === name),
        { key: name, generateValue: true },
      )
    assert.equal(web.envVars[1].fromDatabase.name, blueprint.databases[0].name)
    assert.equal(web.envVars[2].fromService.name, web.name)
    const values = Object.fromEntries(given.map(({ key, value }) => [key, value ?? BASE64]))
    const found = { ...values, BASE_URL: 'https://app.example', DATABASE_URL: 'postgres://a:b@db.example/c' }
    assert.deepEqual(loadSettings(found).SECRETS_ENCRYPTION_KEY, [Buffer.from(BASE64, 'base64').toString('hex')])
    for (const service of [web, worker])
      assert.ok(service.maxShutdownDelaySeconds * 1000 > loadSettings(found).SHUTDOWN_GRACE_MS)
  })
})
