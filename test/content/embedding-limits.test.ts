import assert from 'node:assert/strict'
import { startApp, type TestApp } from '../support/app.ts'
import { startEmbeddingServer } from '../support/embedding-server.ts'
import { forSuite } from '../support/suite.ts'
import { embed } from '../support/vendors/embeddings.ts'

/** Stretches of six scripts; 8,000 characters of them are up to 16,000 tokens. */
const SCRIPTS: Record<string, string> = {
  English: 'The contract may be terminated within fourteen days. ',
  Chinese: '我们支持七天内无理由退款,请保留发票和包装。',
  Japanese: 'ご購入から七日以内であれば返金いたします。領収書を保管してください。',
  Arabic: 'يمكن إلغاء العقد خلال أربعة عشر يوما من تاريخ الشراء. ',
  Burmese: 'ဝယ်ယူပြီး ခုနစ်ရက်အတွင်း ပြန်အမ်းငွေ ရရှိနိုင်ပါသည်။ ',
  emoji: '🧾💸📦🚚🙂👩‍🔧',
}

const textOf = (script: string): string => SCRIPTS[script].repeat(1000).slice(0, 8000).toWellFormed()

describe('texts that are longer than embedding models take', () => {
  const server = forSuite(() => startEmbeddingServer(32))
  const apps: TestApp[] = []
  const startWith = async (model: string): Promise<TestApp> => {
    const app = await startApp({
      workers: [],
      env: {
        EMBEDDING_PROVIDER: 'openai',
        EMBEDDING_MODEL: model,
        EMBEDDING_DIMENSIONS: '32',
        EMBEDDING_BASE_URL: server.url,
        EMBEDDING_API_KEY: 'key',
      },
    })
    apps.push(app)
    return app
  }
  after(async () => {
    await Promise.all(apps.map(app => app.close()))
  })

  it('are embedded up to the tokens of the model, in every script', async () => {
    const { admin } = await startWith('text-embedding-3-small')
    const refused: number[] = []
    server.behave = ({ body }) => {
      const { answer } = embed({ body } as never)
      if (answer.status !== 200) refused.push(answer.status)
      return answer.status === 200 ? {} : { status: answer.status, body: answer.body }
    }
    const inputs = Object.keys(SCRIPTS).map(textOf)
    const { status, body } = await admin.post('/embeddings', { inputs })
    assert.equal(status, 200, JSON.stringify(body))
    assert.equal(body.embeddings.length, inputs.length)
    assert.deepEqual(refused, [])
    for (const [index, sent] of server.calls.flatMap(({ texts }) => texts).entries()) {
      assert.ok(inputs[index].startsWith(sent))
      // As much as the model takes, not less.
      assert.ok(sent.length === 8000 || sent.length > 3900, `${sent.length}`)
    }
  })

  it('are halved while a model of unknown limits refuses them', async () => {
    const { admin } = await startWith('bge-small')
    server.calls.length = 0
    const MOST = 1500
    server.behave = ({ texts }) =>
      texts.some(text => text.length > MOST)
        ? { status: 400, body: { error: { message: `input is longer than ${MOST}` } } }
        : {}
    const long = textOf('English')
    const { status, body } = await admin.post('/embeddings', { inputs: [long, 'short'] })
    assert.equal(status, 200, JSON.stringify(body))
    assert.equal(body.embeddings.length, 2)
    const accepted = server.calls.flatMap(({ texts }) => texts).filter(text => text.length <= MOST)
    assert.ok(accepted.some(text => text.length > MOST / 2 && long.startsWith(text)))

    server.calls.length = 0
    server.behave = () => ({ status: 400, body: { error: { message: 'never' } } })
    const never = await admin.post('/embeddings', { input: long })
    assert.equal(never.status, 502, JSON.stringify(never.body))
    assert.ok(server.calls.length <= 6, `${server.calls.length} calls`)
  })
})
