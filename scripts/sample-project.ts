import type { Muster } from '@muster/client'

/** The records of the sample project that a page of the console is about. */
export type SampleProject = {
  projectId: string
  agentId: string
  sessionId: string
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
    'We open at nine.',
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

/** Answers of the test model, by text of the prompt; each stands for an answer of a real model. */
const REPLIES: [contains: string, reply: object][] = [
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

/**
 * Fills a deployment with the project of a support product: agents, conversations, work, approvals.
 * @param controlUrl address of the test model, whose script is replaced
 */
export async function createSampleProject(muster: Muster, controlUrl: string): Promise<SampleProject> {
  const response = await fetch(`${controlUrl}/control/lanes/support`, {
    method: 'PUT',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify({
      rules: [
        ...REPLIES.map(([contains, reply]) => ({ when: { any: { contains } }, reply })),
        ...QUESTIONS.flatMap(([user, , first, second]) => [
          { when: { user, system: FRIENDLY }, reply: { text: second } },
          { when: { user }, reply: { text: first } },
        ]),
      ],
    }),
  })
  if (!response.ok) throw new Error(`the test model refused its script: ${await response.text()}`)
  const { id: project_id } = await muster.projects.create({ name: 'Lampshop support' })
  const provider = await muster.aiProviders.create({
    project_id,
    name: 'Production models',
    provider: 'custom',
    base_url: `${controlUrl}/v1`,
    default_model: 'support/large',
  })
  const agent = (name: string, description: string, instructions: string) =>
    muster.agents.create({ project_id, name, description, instructions, ai_provider_id: provider.id })
  const assistant = await agent(
    'Support assistant',
    'Answers questions about orders, delivery and returns',
    INSTRUCTIONS,
  )
  await agent('Refund desk', 'Checks refunds and prepares the payment', 'Check the claim and propose one decision.')
  await agent('Translator', 'Translates messages between customers and the team', 'Translate, and keep the tone.')
  const session = await muster.sessions.create({ project_id, agent_id: assistant.id, name: 'Where is my order?' })
  const board = await createBoard(muster, project_id, assistant.id)
  const claims = await createClaims(muster, project_id, assistant.id, session.id)
  const evaluation = await createEvaluation(muster, project_id, assistant.id, provider.id)
  return { projectId: project_id, agentId: assistant.id, sessionId: session.id, ...board, ...claims, ...evaluation }
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
    description: 'Requests that need more than a reply: an agent drafts, a person reads, the customer gets one answer',
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
