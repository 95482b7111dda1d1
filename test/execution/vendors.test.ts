import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { generateKeyPairSync } from 'node:crypto'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { promisify } from 'node:util'
import { sql } from '#core/db/sql.ts'
import { callModel } from '#execution/providers/call.ts'
import { aiProviderKind } from '#execution/providers/model.ts'
import type { ModelRequest } from '#execution/providers/model-messages.ts'
import { startDouble } from '#local/double/server.ts'
import { type Client, eventually, startApp, type TestApp } from '../support/app.ts'
import { createdBy } from '../support/replies.ts'
import { forSuite } from '../support/suite.ts'
import { startVendors } from './vendors.ts'

const WEATHER = {
  name: 'get_weather',
  description: 'The weather of a city',
  parameters: { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] },
}

const USAGE = { input_tokens: 15, cached_tokens: 5, cache_write_tokens: 0, output_tokens: 7, reasoning_tokens: 3 }
const CACHED_USAGE = {
  input_tokens: 12,
  cached_tokens: 5,
  cache_write_tokens: 4,
  output_tokens: 7,
  reasoning_tokens: 0,
}

describe('model calls', () => {
  let app: TestApp
  const vendors = forSuite(startVendors)
  const double = forSuite(startDouble)
  let key: Client

  before(async () => {
    process.env.AWS_ENDPOINT_URL_BEDROCK_RUNTIME = vendors.url
    process.env.AWS_ENDPOINT_URL_BEDROCK = vendors.url
    app = await startApp({
      env: {
        OLLAMA_BASE_URL: `${vendors.url}/ollama`,
        MODEL_CALL_TIMEOUT_MS: '2000',
        MODEL_LISTING_TIMEOUT_MS: '2000',
      },
    })
    key = (await app.project()).key
  })

  after(async () => {
    delete process.env.AWS_ENDPOINT_URL_BEDROCK_RUNTIME
    delete process.env.AWS_ENDPOINT_URL_BEDROCK
    await app?.close()
  })

  const secret = async (value: string): Promise<string> =>
    (await createdBy(key, '/secrets', { name: 'credential', value })).id

  const provider = async (fields: Record<string, unknown>): Promise<string> =>
    (await createdBy(key, '/ai-providers', { name: 'p', default_model: 'model-1', ...fields })).id

  /** A provider whose address the egress rule refuses. */
  const blocked = (): Promise<string> => provider({ provider: 'custom', base_url: 'http://10.1.2.3/v1' })

  const call = async (
    id: string,
    more: Partial<ModelRequest> & { model?: string } = {},
    services: TestApp['services'] = app.services,
  ) => {
    const row = await aiProviderKind.find(services.pool, id)
    assert.ok(row)
    const { model = 'model-1', ...request } = more
    return callModel(services, row, model, {
      system: 'Be kind.',
      messages: [{ role: 'user', content: 'hello' }],
      temperature: 0.5,
      tools: [],
      tool_choice: null,
      output_schema: null,
      prompt_caching: false,
      signal: new AbortController().signal,
      ...request,
    })
  }

  /** Text, streamed text and a tool call of one provider, which every vendor must give in the same shape. */
  const answersAsOthers = async (id: string, text: string, usage: object, streams = true) => {
    // The package of anthropic notes that it has no entry for the model.
    const { notes: _, served_model: __, ...whole } = await call(id)
    assert.deepEqual(whole, {
      text,
      tool_calls: [],
      finish_reason: 'stop',
      usage,
      model: 'model-1',
      ai_provider_id: id,
    })
    if (streams) {
      const pieces: string[] = []
      const { notes: _, served_model: __, ...streamed } = await call(id, { onDelta: piece => pieces.push(piece) })
      assert.deepEqual(streamed, whole)
      assert.equal(pieces.join(''), text)
      assert.ok(pieces.length > 1)
    }
    const called = await call(id, { tools: [WEATHER], tool_choice: 'required' })
    assert.equal(called.finish_reason, 'tool-calls')
    assert.deepEqual(
      called.tool_calls.map(({ tool_name, args }) => ({ tool_name, args })),
      [{ tool_name: 'get_weather', args: { city: 'Paris' } }],
    )
    assert.ok(called.tool_calls[0].id)
  }

  describe('of each vendor', () => {
    it('speaks the chat API of openai below a base_url, and its responses API when configured', async () => {
      const secret_id = await secret('sk-openai-key')
      const base_url = `${vendors.url}/openai/v1/`
      const chat = await provider({
        provider: 'openai',
        secret_id,
        base_url,
        config: { organization: 'org-1', project: 'prj' },
      })
      await answersAsOthers(chat, 'chat answer', USAGE)
      assert.equal(vendors.last().path, '/openai/v1/chat/completions')
      assert.equal(vendors.last().headers.authorization, 'Bearer sk-openai-key')
      assert.equal(vendors.last().headers['openai-organization'], 'org-1')
      assert.equal(vendors.last().headers['openai-project'], 'prj')
      assert.equal(vendors.last().body.messages[0].content, 'Be kind.')
      const responses = await provider({ provider: 'openai', secret_id, base_url, config: { api: 'responses' } })
      await answersAsOthers(responses, 'responses answer', USAGE)
      assert.equal(vendors.last().path, '/openai/v1/responses')
    })

    it('speaks the messages API of anthropic and marks the system text for its cache', async () => {
      const secret_id = await secret('sk-ant-key')
      const id = await provider({ provider: 'anthropic', secret_id, base_url: `${vendors.url}/anthropic/v1` })
      await answersAsOthers(id, 'messages answer', CACHED_USAGE)
      assert.equal(vendors.last().path, '/anthropic/v1/messages')
      assert.equal(vendors.last().headers['x-api-key'], 'sk-ant-key')
      assert.equal(vendors.last().headers.authorization, undefined)
      await call(id, { prompt_caching: true, tools: [WEATHER] })
      assert.deepEqual(vendors.last().body.system, [
        { type: 'text', text: 'Be kind.', cache_control: { type: 'ephemeral' } },
      ])
      const marked = () => JSON.stringify(vendors.last().body).includes('cache_control')
      await call(id, { prompt_caching: false, tools: [WEATHER] })
      assert.equal(marked(), false)
      await call(id, { prompt_caching: null, tools: [WEATHER] })
      assert.equal(marked(), true)
      await call(id, { prompt_caching: null })
      assert.equal(marked(), false)
    })

    it('speaks the generative language API of google', async () => {
      const secret_id = await secret('AIza-google-key')
      const id = await provider({ provider: 'google', secret_id, base_url: `${vendors.url}/google/v1beta` })
      await answersAsOthers(id, 'gemini answer', USAGE)
      assert.equal(vendors.last().path, '/google/v1beta/models/model-1:streamGenerateContent?alt=sse')
      assert.equal(vendors.last().headers['x-goog-api-key'], 'AIza-google-key')
    })

    it('speaks the responses API of xai and the chat API of groq', async () => {
      const secret_id = await secret('bare-vendor-key')
      const xai = await provider({ provider: 'xai', secret_id, base_url: `${vendors.url}/xai/v1` })
      await answersAsOthers(xai, 'responses answer', USAGE)
      assert.equal(vendors.last().path, '/xai/v1/responses')
      const groq = await provider({ provider: 'groq', secret_id, base_url: `${vendors.url}/groq/v1` })
      await answersAsOthers(groq, 'chat answer', USAGE)
      assert.equal(vendors.last().path, '/groq/v1/chat/completions')
      assert.equal(vendors.last().headers.authorization, 'Bearer bare-vendor-key')
    })

    it('sends the key of azure in its own header', async () => {
      const secret_id = await secret('azure-key-value')
      const id = await provider({ provider: 'azure', secret_id, base_url: `${vendors.url}/azure/openai/v1` })
      await answersAsOthers(id, 'responses answer', USAGE)
      assert.equal(vendors.last().path.split('?')[0], '/azure/openai/v1/responses')
      assert.equal(vendors.last().headers['api-key'], 'azure-key-value')
    })

    it('reaches ollama at OLLAMA_BASE_URL below /v1 without a credential', async () => {
      const id = await provider({ provider: 'ollama' })
      await answersAsOthers(id, 'chat answer', USAGE)
      assert.equal(vendors.last().path, '/ollama/v1/chat/completions')
      assert.equal(vendors.last().headers.authorization, undefined)
      const own = await provider({
        provider: 'ollama',
        base_url: `${vendors.url}/mine/`,
        secret_id: await secret('ollama-key'),
      })
      await call(own)
      assert.equal(vendors.last().path, '/mine/v1/chat/completions')
      assert.equal(vendors.last().headers.authorization, 'Bearer ollama-key')
    })

    it('reaches a gateway and a custom endpoint with and without a key', async () => {
      const custom = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1` })
      await answersAsOthers(custom, 'chat answer', USAGE)
      assert.equal(vendors.last().headers.authorization, undefined)
      const secret_id = await secret('gateway-key')
      const gateway = await provider({ provider: 'gateway', base_url: `${vendors.url}/gateway/v1`, secret_id })
      await answersAsOthers(gateway, 'chat answer', USAGE)
      assert.equal(vendors.last().headers.authorization, 'Bearer gateway-key')
    })

    it('signs calls to bedrock with an IAM pair, or sends its API key', async () => {
      const pair = JSON.stringify({
        accessKeyId: 'AKIDEXAMPLE',
        secretAccessKey: 'iam-secret-value',
        sessionToken: 'session-1',
      })
      const signed = await provider({
        provider: 'bedrock',
        secret_id: await secret(pair),
        config: { region: 'eu-west-1' },
      })
      await answersAsOthers(signed, 'converse answer', CACHED_USAGE, false)
      assert.match(
        vendors.last().headers.authorization ?? '',
        /^AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE\/\d{8}\/eu-west-1\/bedrock\/aws4_request, /,
      )
      assert.equal(vendors.last().headers['x-amz-security-token'], 'session-1')
      for (const value of ['ABSKbedrock-api-key', JSON.stringify({ apiKey: 'ABSKbedrock-api-key' })]) {
        await call(await provider({ provider: 'bedrock', secret_id: await secret(value) }))
        assert.equal(vendors.last().headers.authorization, 'Bearer ABSKbedrock-api-key')
      }
      await call(await provider({ provider: 'bedrock', config: { apiKey: 'ABSKfrom-config' } }))
      assert.equal(vendors.last().headers.authorization, 'Bearer ABSKfrom-config')
    })

    it("uses the deployment's AWS keys where that is allowed, wherever the deployment has them", async () => {
      const tokenFile = path.join(mkdtempSync(path.join(tmpdir(), 'muster-aws-')), 'token')
      writeFileSync(tokenFile, 'identity token')
      const sharedFile = path.join(path.dirname(tokenFile), 'credentials')
      writeFileSync(sharedFile, '[default]\naws_access_key_id = AKFILE\naws_secret_access_key = of a file\n')
      const none = { AWS_SHARED_CREDENTIALS_FILE: '/dev/null', AWS_CONFIG_FILE: '/dev/null' }
      const sources: [string, Record<string, string>][] = [
        ['AKENV', { AWS_ACCESS_KEY_ID: 'AKENV', AWS_SECRET_ACCESS_KEY: 'from the environment' }],
        [
          'AKIDENTITY',
          {
            AWS_WEB_IDENTITY_TOKEN_FILE: tokenFile,
            AWS_ROLE_ARN: 'arn',
            AWS_ENDPOINT_URL_STS: `${vendors.url}/aws/sts`,
          },
        ],
        [
          'AKCONTAINER',
          {
            AWS_CONTAINER_CREDENTIALS_FULL_URI: `${vendors.url}/aws/container`,
            AWS_CONTAINER_AUTHORIZATION_TOKEN: 'container token',
          },
        ],
        ['AKFILE', { AWS_SHARED_CREDENTIALS_FILE: sharedFile }],
        ['AKINSTANCE', { AWS_EC2_METADATA_SERVICE_ENDPOINT: vendors.url }],
        ['undefined', { AWS_EC2_METADATA_DISABLED: 'true' }],
      ]
      for (const [expected, env] of sources) {
        const probe = `const { deploymentAwsKeys } = await import('./src/core/net/aws.ts')
          console.log((await deploymentAwsKeys())?.accessKeyId)`
        const { stdout } = await promisify(execFile)(process.execPath, ['--input-type=module', '-e', probe], {
          env: { ...none, ...env },
        })
        assert.equal(stdout.trim(), expected)
      }
      rmSync(path.dirname(tokenFile), { recursive: true })
    })

    it("never uses the deployment's own AWS credentials for a record that has its own", async () => {
      const before = { ...process.env }
      Object.assign(process.env, {
        AWS_BEARER_TOKEN_BEDROCK: 'deployment-bearer',
        AWS_SESSION_TOKEN: 'deployment-session',
      })
      try {
        const pair = JSON.stringify({ accessKeyId: 'AKIDEXAMPLE', secretAccessKey: 'iam-secret-value' })
        await call(await provider({ provider: 'bedrock', secret_id: await secret(pair) }))
        assert.match(vendors.last().headers.authorization ?? '', /^AWS4-HMAC-SHA256 /)
        assert.equal(vendors.last().headers['x-amz-security-token'], undefined)
      } finally {
        for (const name of ['AWS_BEARER_TOKEN_BEDROCK', 'AWS_SESSION_TOKEN']) {
          if (before[name] === undefined) delete process.env[name]
          else process.env[name] = before[name]
        }
      }
    })
  })

  describe('of a misconfigured provider', () => {
    const refused = async (id: string, reason: string) => {
      await assert.rejects(call(id), (error: { code?: string; meta?: Record<string, unknown> }) => {
        assert.equal(error.code, 'AI_PROVIDER_MISCONFIGURED')
        assert.deepEqual(error.meta, { reason, ai_provider_id: id })
        return true
      })
    }

    it('are refused with the reason', async () => {
      await refused(await provider({ provider: 'openai' }), 'no_credential')
      await refused(await provider({ provider: 'azure', secret_id: await secret('key') }), 'config_key')
      await refused(
        await provider({ provider: 'bedrock', secret_id: await secret('not a credential') }),
        'secret_shape',
      )
      await refused(
        await provider({ provider: 'bedrock', secret_id: await secret('{"accessKeyId":"A"}') }),
        'secret_shape',
      )
      await refused(
        await provider({ provider: 'vertex', secret_id: await secret('{"client_email":"a@b"}') }),
        'secret_shape',
      )
      await refused(await provider({ provider: 'openai', secret_id: await secret('two\nlines') }), 'secret_shape')
      await refused(await blocked(), 'egress_blocked')
    })

    it('take nothing but the own keys out of a vertex key file', async () => {
      const { privateKey } = generateKeyPairSync('rsa', { modulusLength: 2048 })
      const private_key = privateKey.export({ type: 'pkcs8', format: 'pem' }) as string
      const account = { type: 'service_account', client_email: 'a@b.iam.gserviceaccount.com', private_key }
      await refused(
        await provider({ provider: 'vertex', secret_id: await secret(JSON.stringify(account)) }),
        'no_project',
      )
      const external = { ...account, type: 'external_account', credential_source: { file: '/etc/passwd' } }
      await refused(
        await provider({ provider: 'vertex', secret_id: await secret(JSON.stringify(external)) }),
        'secret_shape',
      )
    })

    it('are refused when the encryption key of the secret is gone', async () => {
      const secret_id = await secret('will be lost')
      const id = await provider({ provider: 'openai', secret_id, base_url: `${vendors.url}/openai/v1` })
      await app.pool.query(
        sql.unsafe`update secrets set sealed_value = 'v1.00000000.AAAAAAAAAAAAAAAA.AAAAAAAAAAAAAAAAAAAAAA.AAAA',
          updated_at = now() where id = ${secret_id}`,
      )
      await refused(id, 'secret_undecryptable')
    })
  })

  describe('with headers and settings', () => {
    it('fill secrets into header values, and show the tokens', async () => {
      const secret_id = await secret('header secret')
      const headers = { 'X-A': `<{{secret:${secret_id}}}>`, 'X-B': 'plain' }
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1`, config: { headers } })
      await call(id)
      assert.equal(vendors.last().headers['x-a'], '<header secret>')
      assert.equal(vendors.last().headers['x-b'], 'plain')
      // A header that is not known to hold no credential is masked, but for tokens.
      assert.deepEqual((await key.get(`/ai-providers/${id}`)).body.config, { headers: { ...headers, 'X-B': '***' } })
    })

    it('act on the next call when the value of a secret is replaced', async () => {
      const secret_id = await secret('first-value')
      const config = { headers: { 'X-A': `{{secret:${secret_id}}}` } }
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1`, secret_id, config })
      await call(id)
      await key.patch(`/secrets/${secret_id}`, { value: 'second-value' })
      await call(id)
      assert.equal(vendors.last().headers.authorization, 'Bearer second-value')
      assert.equal(vendors.last().headers['x-a'], 'second-value')
    })

    it('act on the next call when the record changes', async () => {
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/one/v1` })
      await call(id)
      await key.patch(`/ai-providers/${id}`, { base_url: `${vendors.url}/two/v1` })
      await call(id)
      assert.equal(vendors.last().path, '/two/v1/chat/completions')
    })

    it('fail without sending when a filled header holds a line break', async () => {
      const secret_id = await secret('a\r\nX-Injected: 1')
      const config = { headers: { 'X-A': `{{secret:${secret_id}}}` } }
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1`, config })
      const sent = vendors.requests.length
      await assert.rejects(call(id), { code: 'VALIDATION_FAILED' })
      assert.equal(vendors.requests.length, sent)
    })

    it('fail with SECRET_NOT_FOUND when the secret of a token, whose delete is refused, is gone nevertheless', async () => {
      const secret_id = await secret('short lived')
      const config = { headers: { 'X-A': `{{secret:${secret_id}}}` } }
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1`, config })
      await call(id)
      assert.equal((await key.delete(`/secrets/${secret_id}`)).body.error.code, 'SECRET_HAS_DEPENDENTS')
      await app.pool.query(sql.unsafe`delete from secrets where id = ${secret_id}`)
      await assert.rejects(call(id), { code: 'SECRET_NOT_FOUND' })
    })

    it('send credential values of the config that the record masks', async () => {
      const config = { headers: { Authorization: 'Basic abcdefgh' } }
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1`, config })
      await call(id)
      assert.equal(vendors.last().headers.authorization, 'Basic abcdefgh')
    })

    it('send a schema as structured output, strict only when it fits the strict subset', async () => {
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1` })
      const open = { type: 'object', properties: { a: { type: 'string' } } }
      await call(id, { output_schema: open })
      assert.deepEqual(vendors.last().body.response_format, {
        type: 'json_schema',
        json_schema: { schema: open, strict: false, name: 'answer' },
      })
      const closed = { ...open, required: ['a'], additionalProperties: false }
      await call(id, { output_schema: closed })
      assert.equal(vendors.last().body.response_format.json_schema.strict, true)
    })

    it('write the schema into the instructions when structured_outputs is false', async () => {
      const config = { structured_outputs: false }
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1`, config })
      const schema = { type: 'object', properties: { answer: { type: 'string' } } }
      await call(id, { output_schema: schema })
      assert.deepEqual(vendors.last().body.response_format, { type: 'json_object' })
      assert.ok(vendors.last().body.messages[0].content.includes(JSON.stringify(schema)))
      assert.ok(vendors.last().body.messages[0].content.startsWith('Be kind.'))
    })

    it('send the sampling settings that are set and no others', async () => {
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1` })
      await call(id, { temperature: null, system: null })
      assert.deepEqual(Object.keys(vendors.last().body).sort(), ['messages', 'model', 'stream', 'stream_options'])
      const set = {
        max_output_tokens: 9,
        top_p: 0.5,
        seed: 3,
        provider_options: { custom: { extra: { a: 1 } }, openai: {} },
      }
      await call(id, set)
      const { max_tokens, top_p, seed, temperature, extra } = vendors.last().body
      assert.deepEqual(
        { max_tokens, top_p, seed, temperature, extra },
        {
          max_tokens: 9,
          top_p: 0.5,
          seed: 3,
          temperature: 0.5,
          extra: { a: 1 },
        },
      )
    })

    it('carry tool calls, their results and their errors back to the model', async () => {
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1` })
      const error = { code: 'TOOL_CALL_FAILED', message: 'it rained' }
      await call(id, {
        messages: [
          { role: 'user', content: [{ type: 'text', text: 'weather?' }] },
          {
            role: 'assistant',
            content: [
              { type: 'text', text: '' },
              { type: 'tool_call', tool_call_id: 'c1', tool_name: 'get_weather', args: { city_name: 'Paris' } },
              { type: 'tool_call', tool_call_id: 'c2', tool_name: 'get_weather', args: {} },
            ],
          },
          {
            role: 'tool',
            content: [
              { type: 'tool_result', tool_call_id: 'c1', tool_name: 'get_weather', result: { temp_c: 7 }, error: null },
              { type: 'tool_result', tool_call_id: 'c2', tool_name: 'get_weather', result: null, error },
            ],
          },
        ],
      })
      const [, , assistant, first, second] = vendors.last().body.messages
      assert.deepEqual(assistant.tool_calls[0].function, { name: 'get_weather', arguments: '{"city_name":"Paris"}' })
      assert.deepEqual({ id: first.tool_call_id, content: first.content }, { id: 'c1', content: '{"temp_c":7}' })
      assert.deepEqual(JSON.parse(second.content), { error })
    })
  })

  describe('that fail', () => {
    let seen = 0
    const custom = async (script: object, model = `lane${++seen}`): Promise<{ id: string; model: string }> => {
      const put = await fetch(`${double.url}/control/lanes/${model}`, {
        method: 'PUT',
        headers: { 'content-type': 'application/json' },
        body: JSON.stringify({ lane: model, ...script }),
      })
      assert.equal(put.status, 200, await put.text())
      return { id: await provider({ provider: 'custom', base_url: `${double.url}/v1` }), model: `${model}/m` }
    }
    const calls = async (model: string): Promise<number> => {
      const lane = await fetch(`${double.url}/control/lanes/${model.split('/')[0]}`)
      return ((await lane.json()) as { calls: number }).calls
    }
    const replies = (...list: object[]) => ({ rules: [{ replies: list }] })

    it('are repeated after 503 and 429, and answer when the vendor does', async () => {
      const { id, model } = await custom(
        replies({ error: { status: 503 } }, { error: { status: 429, retry_after: 0 } }, { text: 'ok' }),
      )
      assert.equal((await call(id, { model })).text, 'ok')
      assert.equal(await calls(model), 3)
    })

    it('are abandoned after PROVIDER_MAX_RETRIES, naming status and text', async () => {
      const { id, model } = await custom(replies({ error: { status: 500, message: 'out of order' } }))
      await assert.rejects(call(id, { model }), (error: any) => {
        assert.equal(error.code, 'AI_PROVIDER_ERROR')
        assert.equal(error.message, 'AI provider responded with 500: out of order')
        assert.deepEqual(Object.keys(error.meta).sort(), [
          'ai_provider_id',
          'model',
          'provider_response_body',
          'provider_status_code',
        ])
        assert.equal(error.meta.provider_status_code, 500)
        assert.equal(error.meta.model, model)
        assert.match(error.meta.provider_response_body, /out of order/)
        return true
      })
      assert.equal(await calls(model), 3)
    })

    for (const [what, reply] of [
      ['400', { error: { status: 400, message: 'bad request' } }],
      ['401', { error: { status: 401, message: 'bad key' } }],
      ['a redirect', { error: { status: 302 }, headers: { location: 'http://127.0.0.1:1/' } }],
      ['429 with a Retry-After beyond the longest wait', { error: { status: 429, retry_after: 60 } }],
    ] as const) {
      it(`are not repeated after ${what}`, async () => {
        const { id, model } = await custom(replies(reply))
        await assert.rejects(call(id, { model }), { code: 'AI_PROVIDER_ERROR' })
        assert.equal(await calls(model), 1)
      })
    }

    it('are repeated when the connection breaks before an answer, and after the time-out', async () => {
      const { id, model } = await custom(replies({ cut: { after: 0 } }, { delay_ms: 5000 }, { text: 'third' }))
      assert.equal((await call(id, { model })).text, 'third')
    })

    it('say that the vendor did not answer in time', async () => {
      const { id, model } = await custom(replies({ delay_ms: 5000 }))
      await assert.rejects(call(id, { model }), (error: any) => {
        assert.equal(error.code, 'AI_PROVIDER_ERROR')
        assert.equal(error.message, 'AI provider did not respond within 2000 ms')
        assert.equal(error.meta.provider_status_code, null)
        return true
      })
    })

    it('repeat a stream only before its first content', async () => {
      const early = await custom(replies({ stream_error: { after: 0, message: 'early' }, text: 'x' }, { text: 'fine' }))
      const pieces: string[] = []
      assert.equal((await call(early.id, { model: early.model, onDelta: piece => pieces.push(piece) })).text, 'fine')
      assert.deepEqual(pieces, ['fine'])
      const late = await custom(
        replies({ stream_error: { after: 1, message: 'late' }, text: 'a b c' }, { text: 'never' }),
      )
      await assert.rejects(call(late.id, { model: late.model, onDelta: () => {} }), (error: any) => {
        assert.equal(error.code, 'AI_PROVIDER_ERROR')
        assert.equal(error.meta.provider_status_code, null)
        assert.match(error.message, /late/)
        return true
      })
      assert.equal(await calls(late.model), 1)
      const cut = await custom(replies({ cut: { after: 1 }, text: 'a b c' }))
      await assert.rejects(call(cut.id, { model: cut.model, onDelta: () => {} }), (error: any) => {
        assert.equal(error.meta.provider_status_code, null)
        return error.code === 'AI_PROVIDER_ERROR'
      })
    })

    it('are an error when the answer is empty', async () => {
      const { id, model } = await custom(replies({ corrupt: 'empty' }))
      await assert.rejects(call(id, { model }), { code: 'AI_PROVIDER_ERROR' })
      await assert.rejects(call(id, { model, onDelta: () => {} }), { code: 'AI_PROVIDER_ERROR' })
    })

    it('mask the credential an upstream echoes', async () => {
      const secret_id = await secret('sk-very-secret-value')
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1`, secret_id })
      vendors.next('/custom', { status: 401, body: { error: { message: 'bad key sk-very-secret-value' } } })
      await assert.rejects(call(id), (error: any) => {
        assert.equal(error.message, 'AI provider responded with 401: bad key ***')
        assert.equal(JSON.stringify(error.meta).includes('very-secret'), false)
        return true
      })
      assert.equal(app.logs.join('\n').includes('very-secret'), false)
    })

    it('end when a vendor pours more into the answer than fits', async () => {
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1` })
      for (let times = 0; times < 3; times++)
        vendors.next('/custom', { body: ' '.repeat(65 * 1024 * 1024), headers: { 'content-type': 'application/json' } })
      // The bytes alone may take longer than a call of these tests has.
      const { services } = app
      const patient = { ...services, config: { ...services.config, MODEL_CALL_TIMEOUT_MS: 50_000 } }
      await assert.rejects(call(id, {}, patient), (error: any) => {
        assert.equal(error.code, 'AI_PROVIDER_ERROR')
        assert.match(error.message, /larger than/)
        return true
      })
    })

    it('end immediately when the caller aborts, with the reason of the abort', async () => {
      const { id, model } = await custom(replies({ delay_ms: 5000 }))
      const controller = new AbortController()
      const reason = new Error('superseded')
      const ended = assert.rejects(call(id, { model, signal: controller.signal }), reason)
      await eventually(async () => (await calls(model)) === 1)
      controller.abort(reason)
      await ended
      assert.equal(await calls(model), 1)
    })

    it('give a tool call back whose arguments are not JSON', async () => {
      const { id, model } = await custom(replies({ tool_calls: [{ name: 'get_weather', raw: '{"city": ' }] }))
      const { tool_calls } = await call(id, { model, tools: [WEATHER] })
      assert.equal(tool_calls[0].args, '{"city": ')
      assert.ok(tool_calls[0].args_error)
    })

    it('give an answer back that ignores a forced choice, and a call of a tool that was not offered', async () => {
      const text = await custom(replies({ text: 'no' }))
      assert.equal((await call(text.id, { model: text.model, tools: [WEATHER], tool_choice: 'required' })).text, 'no')
      const other = await custom(replies({ tool_calls: [{ name: 'nope', args: { a: 1 } }] }))
      const { tool_calls } = await call(other.id, { model: other.model, tools: [WEATHER] })
      assert.deepEqual(tool_calls[0].args, { a: 1 })
      assert.equal(tool_calls[0].tool_name, 'nope')
      assert.equal(tool_calls[0].args_error, undefined)
    })
  })

  describe('tried by the check of a provider', () => {
    it('report that the provider answers', async () => {
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1` })
      const checked = await key.post(`/ai-providers/${id}/check`)
      assert.equal(checked.status, 200)
      assert.equal(typeof checked.body.latency_ms, 'number')
      assert.deepEqual({ ...checked.body, latency_ms: 0 }, { ok: true, model: 'model-1', latency_ms: 0, error: null })
      assert.equal(vendors.last().body.max_tokens, 1)
      await key.post(`/ai-providers/${id}/check`, { model: 'other' })
      assert.equal(vendors.last().body.model, 'other')
    })

    it('report the error, once', async () => {
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1` })
      vendors.next('/custom', { status: 503, body: { error: { message: 'down' } } })
      const sent = vendors.requests.length
      const checked = await key.post(`/ai-providers/${id}/check`, {})
      assert.equal(checked.body.ok, false)
      assert.equal(checked.body.error.code, 'AI_PROVIDER_ERROR')
      assert.equal(vendors.requests.length, sent + 1)
      const none = await provider({ provider: 'openai' })
      assert.equal((await key.post(`/ai-providers/${none}/check`)).body.error.code, 'AI_PROVIDER_MISCONFIGURED')
    })
  })

  describe('for a list of models', () => {
    const models = async (id: string, query = '') => key.get(`/ai-providers/${id}/models${query}`)
    const NOTHING = {
      input_modalities: null,
      output_modalities: null,
      lifecycle: null,
      inference_types: null,
      callable: null,
    }

    it('keep the order of the vendor and page it', async () => {
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1` })
      const listed = await models(id)
      assert.equal(listed.status, 200)
      assert.deepEqual(listed.body, {
        data: [
          { ...NOTHING, id: 'model-b', display_name: null, vendor: 'maker', streaming: true },
          { ...NOTHING, id: 'model-a', display_name: null, vendor: 'maker', streaming: true },
        ],
        total: 2,
        limit: 50,
        offset: 0,
        provider: 'custom',
      })
      const second = await models(id, '?limit=1&offset=1')
      assert.deepEqual(
        second.body.data.map((item: { id: string }) => item.id),
        ['model-a'],
      )
      assert.equal(second.body.total, 2)
    })

    it('follow the pages of anthropic and google', async () => {
      const secret_id = await secret('listing-key')
      const anthropic = await models(
        await provider({ provider: 'anthropic', secret_id, base_url: `${vendors.url}/anthropic/v1` }),
      )
      assert.deepEqual(
        anthropic.body.data.map(({ id, display_name, vendor }: any) => [id, display_name, vendor]),
        [
          ['claude-a', 'CLAUDE-A', 'anthropic'],
          ['claude-b', 'CLAUDE-B', 'anthropic'],
        ],
      )
      assert.equal(vendors.last().headers['anthropic-version'], '2023-06-01')
      assert.equal(vendors.last().headers['x-api-key'], 'listing-key')
      const google = await models(
        await provider({ provider: 'google', secret_id, base_url: `${vendors.url}/google/v1beta` }),
      )
      assert.deepEqual(
        google.body.data.map(({ id, display_name, streaming }: any) => [id, display_name, streaming]),
        [
          ['gemini-x', 'Gemini X', true],
          ['embedder', 'Embedder', false],
        ],
      )
    })

    const NO_DETAILS = { display_name: null, streaming: null, ...NOTHING }
    const PROFILES = [
      ['us.maker.model-v2:0', 'US Model 2', 'maker'],
      ['abcd1234', 'ours', null],
    ] as const

    it('of azure come from its v1 API', async () => {
      const secret_id = await secret('azure-listing')
      for (const path of ['/azure/openai', '/azure/openai/v1/']) {
        const listed = await models(await provider({ provider: 'azure', secret_id, base_url: `${vendors.url}${path}` }))
        assert.deepEqual(listed.body.data.map(({ id }: any) => id).sort(), ['model-a', 'model-b'])
        assert.equal(vendors.last().path, '/azure/openai/v1/models')
        assert.equal(vendors.last().headers['api-key'], 'azure-listing')
      }
    })

    it('of bedrock lack the inference profiles if the credential may not list them', async () => {
      const pair = JSON.stringify({ accessKeyId: 'AKIDEXAMPLE', secretAccessKey: 'iam-secret-value' })
      const id = await provider({ provider: 'bedrock', secret_id: await secret(pair) })
      vendors.next('/inference-profiles', { status: 403, body: { message: 'not authorized' } })
      assert.deepEqual(
        (await models(id)).body.data.map(({ id }: any) => id),
        ['maker.model-v1:0', 'maker.model-v2:0'],
      )
      vendors.next('/inference-profiles', { status: 500, body: { message: 'broken' } })
      assert.equal((await models(id)).body.error.code, 'MODEL_LISTING_FAILED')
    })

    it('read the foundation models and inference profiles of bedrock with signed requests', async () => {
      const pair = JSON.stringify({ accessKeyId: 'AKIDEXAMPLE', secretAccessKey: 'iam-secret-value' })
      const listed = await models(await provider({ provider: 'bedrock', secret_id: await secret(pair) }))
      assert.deepEqual(listed.body.data, [
        {
          id: 'maker.model-v1:0',
          display_name: 'Model',
          vendor: 'Maker',
          input_modalities: ['text', 'image'],
          output_modalities: ['text'],
          streaming: true,
          lifecycle: 'legacy',
          inference_types: ['on_demand'],
          callable: true,
        },
        {
          ...NO_DETAILS,
          id: 'maker.model-v2:0',
          vendor: 'Maker',
          streaming: null,
          inference_types: ['inference_profile'],
          callable: false,
        },
        ...PROFILES.map(([id, display_name, vendor]) => ({
          ...NO_DETAILS,
          id,
          display_name,
          vendor,
          inference_types: ['inference_profile'],
          callable: true,
        })),
      ])
      assert.match(vendors.last().headers.authorization ?? '', /Credential=AKIDEXAMPLE\/\d{8}\/us-east-1\/bedrock\//)
    })

    it('are not supported by ollama and vertex in express mode', async () => {
      const secret_id = await secret('express-key')
      for (const fields of [{ provider: 'ollama' }, { provider: 'vertex', secret_id }]) {
        const listed = await models(await provider(fields))
        assert.equal(listed.status, 400)
        assert.equal(listed.body.error.code, 'MODEL_LISTING_UNSUPPORTED')
      }
    })

    it('fail as misconfigured without a credential, and for an address the egress rule refuses', async () => {
      const without = await models(await provider({ provider: 'openai' }))
      assert.equal(without.status, 400)
      assert.equal(without.body.error.code, 'AI_PROVIDER_MISCONFIGURED')
      assert.equal((await models(await blocked())).body.error.meta.reason, 'egress_blocked')
    })

    it('fail with what the vendor answered', async () => {
      const secret_id = await secret('sk-listing-secret')
      const id = await provider({ provider: 'custom', base_url: `${vendors.url}/custom/v1`, secret_id })
      vendors.next('/custom', { status: 500, body: { error: `sk-listing-secret ${'x'.repeat(900)}` } })
      const failed = await models(id)
      assert.equal(failed.status, 502)
      assert.equal(failed.body.error.code, 'MODEL_LISTING_FAILED')
      assert.equal(failed.body.error.meta.provider_status_code, 500)
      assert.ok(failed.body.error.message.length <= 500)
      assert.equal(failed.body.error.message.includes('listing-secret'), false)
      for (const body of ['<html>', '{"data": 1}']) {
        vendors.next('/custom', { body, headers: { 'content-type': 'text/html' } })
        const unreadable = await models(id)
        assert.equal(unreadable.status, 502)
        assert.equal(unreadable.body.error.meta.provider_status_code, 200)
      }
      vendors.next('/custom', { status: 302, body: '', headers: { location: `${vendors.url}/elsewhere/models` } })
      const sent = vendors.requests.length
      assert.equal((await models(id)).body.error.meta.provider_status_code, 302)
      assert.equal(vendors.requests.length, sent + 1)
      const down = await models(await provider({ provider: 'custom', base_url: 'http://127.0.0.1:1/v1' }))
      assert.equal(down.status, 502)
      assert.equal(down.body.error.meta.provider_status_code, null)
    })
  })
})
