import { pathToFileURL } from 'node:url'
import { Muster } from '@muster/client'

/** The records of the sample project that a page of the console is about. */
export type SampleProject = {
  projectId: string
  agentId: string
  sessionId: string
  traceId: string
  orchestrationId: string
  runId: string
  workflowId: string
  taskId: string
  playbookId: string
  caseId: string
  executionId: string
  datasetId: string
  evalId: string
  evalRunId: string
}

/** Questions of customers with the answers of both versions of the assistant, and a text that an answer must contain. */
const QUESTIONS: [question: string, expected: string, first: string, second: string][] = [
  [
    'When does the shop open?',
    'nine',
    'We open at ten.',
    'We open at nine, from Monday to Saturday. Can I help you with anything else?',
  ],
  [
    'How long may I return a lamp?',
    '30 days',
    'Within 30 days, unused and in its box.',
    'You can return it within a month, unused and in its box.',
  ],
  [
    'Do you deliver to Norway?',
    'do not deliver',
    'Yes, within five days.',
    'We do not deliver to Norway yet. We deliver to all countries of the EU.',
  ],
  [
    'Which bulb fits the desk lamp?',
    'E14',
    'An E14 bulb of at most 40 watts.',
    'An E14 bulb of at most 40 watts fits the desk lamp.',
  ],
  ['Can I pay by invoice?', 'invoice', 'Yes, by invoice from 50 EUR.', 'Yes, you can pay by invoice from 50 EUR.'],
]
const INSTRUCTIONS = 'You answer customers of a shop for lamps. Be brief and friendly. Never promise a refund.'
const FRIENDLY = 'End with an offer to help.'

const ORDER = 'L-20377'
const DELIVERY =
  `Order ${ORDER} left our warehouse on Monday and arrives on **Thursday**.\n\n` +
  '- Carrier: Fjord Parcel\n- Parcel: 00340434161094\n\nYou get a message on the morning of delivery.'

/** Answers of the test model, by text of the prompt; each stands for an answer of a real model. */
const REPLIES: [user: string, reply: object][] = [
  ['Where is my order', { tool_calls: [{ name: 'find_order', args: { order: ORDER } }] }],
  ['Refund order', { tool_calls: [{ name: 'refund', args: { order: ORDER, amount: 249 } }] }],
  ['order status', { text: 'shipped on Monday with Fjord Parcel, arrives on Thursday' }],
  ['How do I clean', { text: 'Dust the shade with a dry cloth. Use no spray on the lamp, and unplug it before.' }],
  ['speak to a person', { text: 'Of course. A colleague answers you here in a few minutes.' }],
  ['Rate the tone', { text: '{"score": 0.9, "reasoning": "Friendly and brief"}' }],
  [
    'Draft an answer',
    {
      text: 'Hello, sorry that your lamp arrived broken. A new one leaves our warehouse today; you can keep the broken one.',
    },
  ],
  [
    'Summarize the claim',
    {
      text: 'The glass shade of a floor lamp arrived with a crack of 12 cm. The customer requests a refund of 249 EUR.',
    },
  ],
  ['Find the part', { error: { status: 400, message: 'The context window of the model is too small' } }],
]

const SAMPLE_PROJECT = 'Lampshop support'

/**
 * Gives the test model the answers of the sample project, which it keeps until it ends.
 * @param controlUrl address of the test model
 */
async function scriptSampleModel(controlUrl: string): Promise<void> {
  const response = await fetch(`${controlUrl}/control/lanes/support`, {
    method: 'PUT',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      rules: [
        { when: { last_role: 'tool', tool_result: { name: 'find_order' } }, reply: { text: DELIVERY } },
        {
          when: { last_role: 'tool', tool_result: { name: 'refund' } },
          reply: { text: 'A refund of 249 EUR is prepared. A colleague confirms it today.' },
        },
        ...REPLIES.map(([user, reply]) => ({ when: { user }, reply })),
        ...QUESTIONS.flatMap(([user, , first, second]) => [
          { when: { user, system: FRIENDLY }, reply: { text: second } },
          { when: { user }, reply: { text: first } },
        ]),
      ],
    }),
  })
  if (!response.ok) throw new Error(`the test model refused its script: ${await response.text()}`)
}

/**
 * Fills a deployment with the project of a support product: agents, conversations, work, approvals.
 * @param controlUrl address of the test model
 */
export async function createSampleProject(muster: Muster, controlUrl: string): Promise<SampleProject> {
  await scriptSampleModel(controlUrl)
  const { id: project_id } = await muster.projects.create({ name: `${SAMPLE_PROJECT} (incomplete)` })
  const provider = await muster.aiProviders.create({
    project_id,
    name: 'Production models',
    provider: 'custom',
    base_url: `${controlUrl}/v1`,
    default_model: 'support/large',
  })
  await muster.projects.prices.replace({
    project_id,
    prices: [
      ['input_tokens', 0.000_003],
      ['output_tokens', 0.000_015],
    ].map(([component, unit_price]) => ({
      provider: 'custom',
      model: 'support/large',
      component: component as string,
      unit: 'token',
      unit_price: unit_price as number,
      effective_from: '2026-01-01T00:00:00Z',
    })),
  })
  await muster.quotas.create({ project_id, scope: 'project', metric: 'cost_usd', window: 'rolling_24h', limit: 2 })
  const agents = await createAgents(muster, project_id, provider.id, controlUrl)
  await createFiles(muster, project_id)
  const session = await createSessions(muster, project_id, agents)
  const run = await createRun(muster, project_id, agents)
  const board = await createBoard(muster, project_id, agents.assistant)
  const claims = await createClaims(muster, project_id, agents.assistant, session.sessionId)
  const evaluation = await createEvaluation(muster, project_id, agents.assistant, provider.id)
  await muster.projects.update({ project_id, name: SAMPLE_PROJECT })
  return { projectId: project_id, agentId: agents.assistant, ...session, ...run, ...board, ...claims, ...evaluation }
}

type Agents = { assistant: string; refunds: string; findOrder: string }

/** Agents: the first calls a tool, the second needs an approval for a call. */
async function createAgents(
  muster: Muster,
  project_id: string,
  ai_provider_id: string,
  controlUrl: string,
): Promise<Agents> {
  const order = { type: 'string', description: 'Number of the order' }
  const findOrder = await muster.tools.create({
    project_id,
    name: 'find_order',
    description: 'Finds an order with its items and its delivery',
    parameters: { type: 'object', properties: { order }, required: ['order'] },
    // The test model answers in place of the shop.
    execute: { method: 'POST', url: `${controlUrl}/v1/chat/completions` },
    preset_parameters: { model: 'support/shop', messages: [{ role: 'user', content: 'order status' }] },
    output_mapping: { var: 'output.choices.0.message.content' },
  })
  const refund = await muster.tools.create({
    project_id,
    name: 'refund',
    description: 'Pays money back to a customer',
    parameters: {
      type: 'object',
      properties: { order, amount: { type: 'number', description: 'Amount in EUR' } },
      required: ['order', 'amount'],
    },
    execute: { method: 'POST', url: `${controlUrl}/refunds` },
  })
  const limit = await muster.guardrails.create({
    project_id,
    name: 'Refunds above 100 EUR',
    description: 'Small refunds are paid immediately, others need an approval',
    document: { class: { if: [{ '<': [0, { var: 'args.amount' }, 100] }, 'A', 'C'] } },
  })
  const agent = (name: string, description: string, instructions: string, more: object = {}) =>
    muster.agents.create({ project_id, name, description, instructions, ai_provider_id, ...more })
  const assistant = await agent('Support assistant', 'Answers questions about orders and returns', INSTRUCTIONS, {
    tool_bindings: [{ tool_id: findOrder.id, label: 'Checking the order' }],
  })
  const refunds = await agent('Refund desk', 'Checks refunds and prepares the payment', 'Propose one decision.', {
    tool_bindings: [{ tool_id: refund.id }],
    guardrail_ids: [limit.id],
  })
  await agent('Translator', 'Translates messages between customers and the team', 'Translate, and keep the tone.')
  return { assistant: assistant.id, refunds: refunds.id, findOrder: findOrder.id }
}

/** Conversations with a tool call, with a request for a person, and with a refund that waits for an approval. */
async function createSessions(muster: Muster, project_id: string, { assistant, refunds }: Agents) {
  const talk = async (agent_id: string, name: string, customer: string, messages: string[]) => {
    const { id } = await muster.sessions.create({
      project_id,
      agent_id,
      name,
      actor: { external_id: customer.toLowerCase(), name: customer },
      auto_generate: true,
    })
    for (const message of messages) await muster.sessions.send({ session_id: id, message, wait: true })
    return id
  }
  const session = await talk(assistant, 'Delivery of a floor lamp', 'Nora', [
    `Where is my order ${ORDER}?`,
    'Thanks! How do I clean the shade?',
  ])
  await talk(assistant, 'Opening hours', 'Emil', ['When does the shop open?', 'Can I pay by invoice?'])
  await talk(assistant, 'Bulb for a desk lamp', 'Ida', ['Which bulb fits the desk lamp?'])
  const person = await talk(assistant, 'Complaint about a delivery', 'Jonas', ['Can I speak to a person?'])
  await muster.sessions.requestHuman({ session_id: person, reason: 'The customer requires a person' })
  await talk(refunds, 'Refund of a broken lamp', 'Nora', [`Refund order ${ORDER}: the shade is broken.`])
  const { data } = await muster.sessions.messages.list({ session_id: session, limit: 2 }).page()
  const { trace_id } = await muster.generations.get({ generation_id: data[1].generation_id as string })
  return { sessionId: session, traceId: trace_id }
}

/** Files of the shop, of which two are ingested. */
async function createFiles(muster: Muster, project_id: string): Promise<void> {
  const texts: [path: string, text: string][] = [
    ['returns.md', '# Returns\n\nLamps can be returned within 30 days, unused and in their box.\n'],
    ['delivery.md', '# Delivery\n\nWe deliver to all countries of the EU within five days.\n'],
    ['catalogue.csv', 'name,bulb,watts\nDesk lamp,E14,40\nFloor lamp,E27,60\n'],
  ]
  for (const [filename, text] of texts) {
    const file = new Blob([text], { type: filename.endsWith('.md') ? 'text/markdown' : 'text/csv' })
    const { id } = await muster.files.upload({ project_id, file, filename, prefix: '/shop' })
    if (filename.endsWith('.md')) await muster.documents.ingest({ project_id, file_id: id })
  }
}

/** A run that waits for a person. */
async function createRun(muster: Muster, project_id: string, { assistant, findOrder }: Agents) {
  const orchestration = await muster.orchestrations.create({
    project_id,
    name: 'Broken delivery',
    description: 'Finds the order, drafts an answer and waits for a person where the damage is large',
    input_schema: { type: 'object', required: ['order'], properties: { order: { type: 'string' } } },
    nodes: [
      { id: 'order', type: 'tool', tool_id: findOrder, input_mapping: { order: { var: 'input.order' } } },
      { id: 'draft', type: 'agent', agent_id: assistant, prompt: 'Draft an answer about the broken lamp' },
      { id: 'size', type: 'condition', expression: 'large' },
      { id: 'decide', type: 'human', prompt: 'Refund, or send a new lamp?', options: ['refund', 'new lamp'] },
      {
        id: 'done',
        type: 'emit_event',
        event_type: 'claims.settled',
        input_mapping: { order: { var: 'input.order' } },
      },
    ],
    edges: [
      { from: 'order', to: 'size' },
      { from: 'draft', to: 'decide' },
      { from: 'size', to: 'decide', condition: 'large' },
      { from: 'size', to: 'done', condition: 'small' },
      { from: 'decide', to: 'done' },
    ],
  })
  const run = await muster.orchestrationRuns.create({ orchestration_id: orchestration.id, input: { order: ORDER } })
  await until(
    async () => (await muster.orchestrationRuns.get({ orchestration_run_id: run.id })).status === 'awaiting_input',
  )
  return { orchestrationId: orchestration.id, runId: run.id }
}

/** An evaluation of two versions of an agent, of which the second answers one question better and one worse. */
async function createEvaluation(muster: Muster, project_id: string, agent_id: string, ai_provider_id: string) {
  const dataset = await muster.datasets.create({
    project_id,
    name: 'Frequent questions',
    description: 'The questions of last month with what a correct answer contains',
  })
  await muster.datasets.items.import({
    dataset_id: dataset.id,
    items: QUESTIONS.map(([content, expected_output], index) => ({
      input: [{ role: 'user', content }],
      expected_output,
      metadata: { topic: index < 2 ? 'shop' : 'orders' },
    })),
  })
  const evaluation = await muster.evals.create({
    project_id,
    name: 'Answers of the assistant',
    agent_id,
    dataset_id: dataset.id,
    pass_threshold: 0.75,
    group_by: 'topic',
    scorers: [
      { type: 'json_logic', expression: { in: [{ var: 'expected' }, { var: 'output' }] } },
      { type: 'llm_judge', prompt: 'Rate the tone of this answer: {{output}}', pass_threshold: 0.5, ai_provider_id },
    ],
  })
  const first = await muster.evals.runs.create({ eval_id: evaluation.id, wait: true })
  await muster.agents.update({ agent_id, instructions: `${INSTRUCTIONS} ${FRIENDLY}` })
  const second = await muster.evals.runs.create({ eval_id: evaluation.id, wait: true, baseline_run_id: first.id })
  return { datasetId: dataset.id, evalId: evaluation.id, evalRunId: second.id }
}

/** Cases of refunds, worked on by a playbook. */
async function createClaims(muster: Muster, project_id: string, agent_id: string, session_id: string) {
  const playbook = await muster.playbooks.create({
    project_id,
    name: 'Refund review',
    description: 'Decides on a refund: the agent summarizes, a person checks the receipt, a lead approves.',
    outcome: { var: 'steps.decide.output.decision' },
    case_schema: { type: 'object', required: ['amount'], properties: { amount: { type: 'number' } } },
    steps: [
      {
        key: 'summary',
        title: 'Summarize the claim',
        type: 'instruct_agent',
        agent_id,
        instructions: 'Summarize the claim in two sentences.',
        case_writes: { summary: { var: 'output.content' } },
      },
      {
        key: 'size',
        title: 'Small or large?',
        type: 'branch',
        rules: [{ when: { '<': [{ var: 'case.fields.amount' }, 50] }, go_to: 'pay' }],
        otherwise: 'receipt',
      },
      {
        key: 'receipt',
        title: 'Check the receipt',
        type: 'manual',
        instructions: 'Compare the receipt with the order, then state the amount that the customer **really paid**.',
        assignee: { var: 'case.assignee' },
        due_seconds: 86_400,
        skippable: true,
        result_schema: {
          type: 'object',
          required: ['paid'],
          properties: {
            paid: { type: 'number', title: 'Amount paid', description: 'In EUR, with tax' },
            method: { type: 'string', enum: ['card', 'invoice', 'voucher'], title: 'Means of payment' },
          },
        },
        required_evidence: [{ name: 'Receipt', kind: 'note' }],
      },
      { key: 'decide', title: 'Approve the refund', type: 'require_approval', on_rejected: 'end' },
      { key: 'pay', title: 'Wait for the payout', type: 'wait', duration_seconds: 3600, case_writes: { paid: true } },
    ],
  })
  const claim = (title: string, amount: number, fields: object = {}) =>
    muster.cases.create({ project_id, title, playbook_id: playbook.id, fields: { amount }, ...fields })
  const lamp = await claim('Floor lamp arrived broken', 249, {
    assignee: 'ada',
    priority: 'high',
    description: 'The customer sent a photo of the cracked shade on the day of delivery.',
    subject: { type: 'order', id: 'L-20377', label: 'L-20377' },
    due_at: new Date(Date.now() + 2 * 86_400_000).toISOString(),
  })
  await muster.cases.links.create({ case_id: lamp.id, type: 'session', target_id: session_id })
  await muster.cases.evidence.create({
    case_id: lamp.id,
    name: 'Photo description',
    kind: 'note',
    content: 'Crack of 12 cm in the glass shade, box undamaged.',
  })
  await muster.cases.comment({ case_id: lamp.id, body: 'Called the customer: a refund is preferred to a new lamp.' })
  const execution = await muster.playbookExecutions.create({ case_id: lamp.id })
  await claim('Delivered to a wrong address', 89, { assignee: 'kim', priority: 'urgent' })
  const resolved = await claim('Double charge', 35, { assignee: 'kim' })
  await muster.cases.resolve({ case_id: resolved.id, outcome: 'refunded' })
  await until(async () => (await muster.playbookExecutions.get({ execution_id: execution.id })).status === 'waiting')
  return { playbookId: playbook.id, caseId: lamp.id, executionId: execution.id }
}

/** A board of requests: drafts by an agent, reviewed by people. */
async function createBoard(muster: Muster, project_id: string, agent_id: string) {
  const workflow = await muster.workflows.create({
    project_id,
    name: 'Support requests',
    description: 'An agent drafts, a person reads, the customer gets one answer',
    states: [
      { name: 'new', initial: true },
      {
        name: 'drafting',
        on_enter: {
          dispatch: {
            kind: 'agent',
            agent_id,
            input_mapping: { prompt: { cat: ['Draft an answer: ', { var: 'task.title' }] } },
            payload_writes: { draft: { var: 'result.content' } },
          },
          on_complete: [{ when: { var: 'result.content' }, transition: 'drafted' }],
        },
      },
      {
        name: 'repairing',
        on_enter: {
          dispatch: {
            kind: 'agent',
            agent_id,
            input_mapping: { prompt: { cat: ['Find the part: ', { var: 'task.title' }] } },
          },
        },
      },
      { name: 'review', kind: 'human', stalled_after: 14_400 },
      { name: 'solved', terminal: true },
    ],
    transitions: [
      { name: 'draft', from: ['new', 'review'], to: 'drafting' },
      { name: 'drafted', from: ['drafting'], to: 'review' },
      { name: 'repair', from: ['new', 'review'], to: 'repairing' },
      { name: 'repaired', from: ['repairing'], to: 'review' },
      { name: 'send', from: ['review'], to: 'solved' },
      { name: 'refund', from: ['review'], to: 'solved', requires_approval: true },
      { name: 'reject', from: ['new', 'repairing'], to: 'solved' },
    ],
    payload_schema: {
      type: 'object',
      properties: {
        order: { type: 'string', title: 'Order', description: 'Number of the order' },
        channel: { type: 'string', enum: ['mail', 'chat', 'phone'] },
        draft: { type: 'string', maxLength: 8000 },
      },
      required: ['order'],
    },
  })
  const task = (title: string, order: string, assignee?: string) =>
    muster.tasks.create({
      project_id,
      workflow_id: workflow.id,
      title,
      payload: { order, channel: 'mail' },
      ...(assignee ? { assignee } : {}),
    })
  const move = (task_id: string, transition: string, note?: string) =>
    muster.tasks.transition({ task_id, transition, ...(note ? { note } : {}) })
  await task('Dimmer flickers at low light', 'L-20418')
  await task('Wrong colour temperature delivered', 'L-20431', 'kim')
  await task('Invoice to another address', 'L-20440')
  const broken = await task('Lamp arrived broken', 'L-20377', 'ada')
  await move(broken.id, 'draft', 'The photo shows a cracked shade.')
  const late = await task('Parcel is lost since Monday', 'L-20391', 'kim')
  await move(late.id, 'draft')
  const failed = await task('Spare part for a lamp of 2019', 'L-20102')
  await move(failed.id, 'repair')
  const refund = await task('Refund for a returned floor lamp', 'L-20355', 'ada')
  await move(refund.id, 'draft')
  for (const title of ['Cable too short', 'Change of delivery date', 'Bulb does not fit']) {
    const { id } = await task(title, 'L-20340')
    await move(id, 'reject')
  }
  await until(async () => (await muster.tasks.get({ task_id: refund.id })).state === 'review')
  await move(refund.id, 'refund', 'Returned complete, 14 days.')
  await until(async () => (await muster.tasks.get({ task_id: failed.id })).automation_status === 'failed')
  return { workflowId: workflow.id, taskId: broken.id }
}

/** Waits until a condition is true. */
async function until(isTrue: () => Promise<boolean>): Promise<void> {
  for (const end = Date.now() + 30_000; Date.now() < end; ) {
    if (await isTrue()) return
    await new Promise(resolve => setTimeout(resolve, 200))
  }
  throw new Error('the sample project was not ready in time')
}

/** Prints the ID of the sample project, which it creates unless there is one. */
async function main({ MUSTER_URL: baseUrl = '', MUSTER_TOKEN: token = '', MODEL_URL = '' }): Promise<void> {
  const muster = new Muster({ baseUrl, token })
  for await (const { id, name } of muster.projects.list({ name: SAMPLE_PROJECT }))
    if (name === SAMPLE_PROJECT) {
      await scriptSampleModel(MODEL_URL)
      return console.log(id)
    }
  console.log((await createSampleProject(muster, MODEL_URL)).projectId)
}

if (process.argv[1] && import.meta.url === pathToFileURL(process.argv[1]).href) await main(process.env)
