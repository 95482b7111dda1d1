import assert from 'node:assert/strict'
import fs from 'node:fs'
import path from 'node:path'
import ts from 'typescript'
import { operations } from '#core/api/operation.ts'
import {
  AppError,
  type ErrorCode,
  errorCodes,
  errorDocument,
  errorEntry,
  errorTable,
  isErrorCode,
  raise,
  raiseInvalid,
} from '#core/base/errors.ts'
import { sql } from '#core/db/sql.ts'
import { startApp } from '../support/app.ts'
import { forSuite } from '../support/suite.ts'

/** The table of the contract (reference.md, code catalog), by status. */
const reference: Record<number, string> = {
  400: `
    ACTIVITY_INVALID_CURSOR ACTOR_NOT_FOUND AGENT_AND_CHAT_EXCLUSIVE AGENT_NOT_FOUND AI_PROVIDER_MISCONFIGURED
    AI_PROVIDER_NOT_FOUND APPROVAL_INVALID_EDIT APPROVAL_REASON_REQUIRED CHAT_NOT_FOUND FILE_NOT_FOUND
    FILE_PARSE_FAILED FORCED_TOOL_CHOICE_CANNOT_STOP FORMATION_INVALID_METADATA FORMATION_MISSING_PARAMETERS
    GUARDRAIL_NOT_FOUND HOOK_INVALID_JSON INGESTION_RULE_VALIDATION_FAILED INVALID_CRON_EXPRESSION
    INVALID_EVENT_PATTERN INVALID_OUTPUT_SCHEMA INVALID_TEMPLATE_TOKEN INVALID_TOOL_CONTEXT_KEY
    MISSING_TOOL_CONTEXT_KEY MODEL_LISTING_UNSUPPORTED MODEL_ROUTE_NOT_FOUND ORCHESTRATION_HUMAN_NODE_MISMATCH
    ORCHESTRATION_VALIDATION_FAILED OUTPUT_SCHEMA_STREAMING_UNSUPPORTED PDF_PARSE_FAILED PIPELINE_INVALID_STEP
    POLICY_NOT_FOUND REQUEST_REJECTED SECRET_NOT_FOUND SYSTEM_MESSAGE_NOT_ALLOWED TASK_GUARD_REJECTED
    TASK_PAYLOAD_INVALID TASK_STATE_NOT_FOUND TASK_TRANSITION_NOT_FOUND TOOL_NOT_FOUND
    TRIGGER_ACTION_NOT_ALLOWED TRIGGER_INPUT_INVALID TRIGGER_TARGET_NOT_FOUND TRIGGER_TYPE_IMMUTABLE
    UNSUPPORTED_FILE_TYPE VALIDATION_FAILED WORKFLOW_VALIDATION_FAILED
  `,
  401: `
    INGESTION_CALLBACK_INVALID_TOKEN UNAUTHORIZED
  `,
  403: `
    API_KEY_PROJECT_SCOPE FORBIDDEN TOOL_EGRESS_BLOCKED TRIGGER_RECURSION_FORBIDDEN
  `,
  404: `
    APPROVAL_NOT_FOUND CHAIN_NOT_FOUND EXCEPTION_NOT_FOUND GENERATION_NOT_FOUND ORCHESTRATION_NOT_FOUND
    ORCHESTRATION_RUN_NOT_FOUND RESOURCE_NOT_FOUND TASK_NOT_FOUND UPLOAD_TOKEN_NOT_FOUND WORKFLOW_NOT_FOUND
  `,
  409: `
    ACTOR_HAS_MESSAGES AGENT_HAS_DEPENDENTS AI_PROVIDER_HAS_DEPENDENTS APPROVAL_ALREADY_RESOLVED
    APPROVAL_EXPIRED BOOTSTRAP_ALREADY_COMPLETED EXCEPTION_ALREADY_RESOLVED FILE_ALREADY_INGESTED
    FILE_HAS_DEPENDENTS FORMATION_DELETE_FAILED GENERATION_ALREADY_IN_PROGRESS GENERATION_CONTENT_UNAVAILABLE
    GENERATION_NOT_COMPLETED GUARDRAIL_HAS_REFERENCES INGESTION_CALLBACK_CONFLICT INGESTION_RULE_GLOB_CONFLICT
    MODEL_ROUTE_HAS_DEPENDENTS NAME_CONFLICT NO_ACTIVE_RELEASE ORCHESTRATION_RUN_DEPTH_LIMIT
    ORCHESTRATION_RUN_NOT_AWAITING_INPUT ORCHESTRATION_RUN_NOT_CANCELLABLE PROJECT_DEFAULT_ROUTE_INHERITED
    PROJECT_HAS_DEPENDENTS PROMOTION_GATE_UNMET QUOTA_CONFLICT QUOTA_STORAGE_EXCEEDED QUOTA_UNENFORCEABLE
    SECRET_HAS_DEPENDENTS SESSION_CLOSED SINGLE_SESSION_CONFLICT TASK_AUTOMATION_CHAIN_LIMIT
    TASK_TRANSITION_CONFLICT TRIGGER_CAUSATION_LIMIT TRIGGER_CREATOR_UNAVAILABLE TRIGGER_NOT_ACTIVE
    UPLOAD_TOKEN_USED WORKFLOW_HAS_OPEN_TASKS
  `,
  410: `
    SESSION_EXPIRED UPLOAD_TOKEN_EXPIRED
  `,
  413: `
    FILE_TOO_LARGE_FOR_SYNC HOOK_PAYLOAD_TOO_LARGE
  `,
  422: `
    CONVERTER_FAILED CONVERTER_OUTPUT_INVALID ORCHESTRATION_CYCLE_DETECTED ORCHESTRATION_DISPATCH_FAILED
    ORCHESTRATION_MAX_ITERATIONS_EXCEEDED ORCHESTRATION_NESTED_RUN_FAILED ORCHESTRATION_NODE_FAILED
    ORCHESTRATION_POLL_EXHAUSTED PIPELINE_DEPTH_EXCEEDED PIPELINE_STEP_FAILED TOOL_CALL_NOT_SUPPORTED
    TOOL_DISPATCH_FAILED
  `,
  429: `
    QUOTA_EXCEEDED
  `,
  500: `
    FILE_DOWNLOAD_URL_NOT_CONFIGURED FILE_STORAGE_MISCONFIGURED FORMATION_REPLACE_CLEANUP_FAILED
    GENERATION_FAILED INTERNAL_ERROR QUEUE_DRIVER_MISCONFIGURED SECRET_NOT_DECRYPTABLE
    TASK_AUTOMATION_PROVENANCE_MISSING
  `,
  501: `
    NOT_IMPLEMENTED
  `,
  502: `
    AI_PROVIDER_ERROR FORMATION_HANDLER_FAILED MODEL_LISTING_FAILED OUTPUT_SCHEMA_VALIDATION_FAILED
    TEXT_ENCODED_TOOL_CALL TOOL_AUTH_FAILED TOOL_HTTP_ERROR
  `,
  503: `
    EMBEDDING_NOT_CONFIGURED
  `,
}
/** What the conventions (section 2) and limits of the platform add, by status. */
const conventions: Record<number, string> = {
  400: `
    DECIDER_AGENT_NOT_TOOL_LESS DECIDER_TOOL_NOT_CALLABLE MEDIA_NOT_ACCEPTED PLAYBOOK_VALIDATION_FAILED
  `,
  403: `
    PUBLIC_SHARES_DISABLED SHARE_REVOKED
  `,
  409: `
    IDEMPOTENCY_KEY_REUSED IDEMPOTENCY_IN_PROGRESS PROJECT_PAUSED PROJECT_NOT_PAUSED POLICY_HAS_DEPENDENTS
    LAST_ADMIN_REQUIRED MODEL_NOT_PRICED TOOL_HAS_DEPENDENTS VERSION_CONFLICT SHARE_IN_USE
    SHARE_ACROSS_CELLS
    ORCHESTRATION_RUN_NOT_PAUSABLE ORCHESTRATION_RUN_PAUSED ORCHESTRATION_RUN_NOT_RETRYABLE
    PLAYBOOK_HAS_ACTIVE_EXECUTIONS PLAYBOOK_EXECUTION_CONFLICT CASE_STATE_CONFLICT
    FORMATION_CONFLICT FORMATION_HAS_DEPENDENTS
    FORMATION_OPERATION_IN_PROGRESS PRICE_IN_EFFECT CONTENT_ON_HOLD FORMATION_PLAN_STALE FORMATION_PROTECTED
    SESSION_ASSIGNED SESSION_NOT_UNDER_OPERATOR SESSION_UNDER_OPERATOR
  `,
  412: `
    PRECONDITION_FAILED
  `,
  422: `
    CONVERSION_TIMEOUT TOOL_CALL_FAILED DECISION_ANSWER_INVALID PLAYBOOK_STEP_FAILED EVAL_SCORING_FAILED
  `,
  429: `
    ACTOR_LIMIT_EXCEEDED IDEMPOTENCY_LIMIT_EXCEEDED SHARE_CAP_EXCEEDED STREAM_LIMIT_EXCEEDED
  `,
  500: `
    DECISION_INTERRUPTED EXECUTOR_LOST INGESTION_FAILED INGESTION_TIMEOUT TRIGGER_FIRING_ABANDONED WORKER_LOST
  `,
  503: `
    CELL_UNAVAILABLE SERVICE_NOT_READY
  `,
}

const statuses = new Map(
  [reference, conventions].flatMap(table =>
    Object.entries(table).flatMap(([status, codes]) =>
      codes
        .trim()
        .split(/\s+/)
        .map(code => [code, Number(status)] as const),
    ),
  ),
)

/** Codes of single problems (`meta.problems`), outcomes, checks and of Node, which are no error codes. */
const OTHER_CODES = [
  'ADDRESS_BLOCKED',
  'ARGUMENT_NOT_REQUIRED',
  'DISPATCH_TARGET_INVALID',
  'DISPATCH_TARGET_NOT_FOUND',
  'DURATION_INVALID',
  'EDGE_FIELD_INVALID',
  'ERR_HTTP_REQUEST_TIMEOUT',
  'EVENT_TYPE_INVALID',
  'INVALID_NUMBER',
  'INVALID_RESOURCE',
  'INVALID_STATE',
  'INVALID_STRING',
  'INVALID_TYPE',
  'INVALID_VALUE',
  'LIMIT_EXCEEDED',
  'LIMIT_REACHED',
  'PAYLOAD_SCHEMA_INVALID',
  'MALFORMED',
  'NOT_FOUND',
  'NOT_JSON',
  'NO_ANSWER',
  'REFERENCE_INVALID',
  'REFERENCE_NOT_FOUND',
  'REQUIRED',
  'RESERVED_PATH',
  'RESERVED_TAG_KEY',
  'RETRY_INVALID',
  'SCHEMA_INVALID',
  'TOO_BIG',
  'TOO_DEEP',
  'CYCLE',
  'IMMUTABLE',
  'PREVENT_DESTROY',
  'TOO_MANY_VALUES',
  'TOO_LARGE',
  'TOO_MANY_CHUNKS',
  'TOO_SMALL',
  'UNCHECKED',
  'UNKNOWN_ACTION',
  'UNKNOWN_PROPERTY',
]

/** The default hint of each status class; a code has its own or one of these. */
const hinted = [400, 401, 403, 404, 409, 410, 412, 413, 422, 429, 500, 501, 502, 503]

const root = path.resolve(import.meta.dirname, '../..')
const sources = ['src', 'jobs', 'bin'].flatMap(dir =>
  fs
    .readdirSync(path.join(root, dir), { recursive: true, encoding: 'utf8' })
    .filter(file => file.endsWith('.ts') && !file.startsWith('double'))
    .map(file => ({ file: `${dir}/${file}`, text: fs.readFileSync(path.join(root, dir, file), 'utf8') })),
)

const literals = (pattern: RegExp): { file: string; code: string }[] =>
  sources.flatMap(({ file, text }) => [...text.matchAll(pattern)].map(match => ({ file, code: match[1] })))

/** Codes whose message says nothing of the occurrence: for callers who may read no more. */
const CONSTANT = ['FORBIDDEN', 'INTERNAL_ERROR', 'UNAUTHORIZED']

type Occurrence = { at: string; code: ErrorCode; message: boolean; meta: string[] | null }

/** Where a source raises a code that it names: whether with a message, and what its meta says; null where that is not literal. */
function occurrences(file: string, text: string): Occurrence[] {
  if (!/\b(?:raise|AppError)\(/.test(text)) return []
  const source = ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true)
  const found: Occurrence[] = []
  const visit = (node: ts.Node): void => {
    ts.forEachChild(node, visit)
    if (!ts.isCallExpression(node) && !ts.isNewExpression(node)) return
    const [code, options] = node.arguments ?? []
    if (!['raise', 'AppError'].includes(node.expression.getText()) || !code || !ts.isStringLiteral(code)) return
    const { line } = source.getLineAndCharacterOfPosition(node.getStart())
    const names = options ? propertiesOf(options) : new Map<string, ts.Node>()
    // A forwarded error may have a message, and is raised where it is made.
    const message = names === null || names.has('message')
    const meta = names?.get('meta')
    const said = meta ? propertiesOf(meta) : new Map()
    found.push({ at: `${file}:${line + 1}`, code: code.text as ErrorCode, message, meta: said && [...said.keys()] })
  }
  visit(source)
  return found
}

/** The properties that an object literal has by name; null for anything else. */
function propertiesOf(node: ts.Node): Map<string, ts.Node> | null {
  if (!ts.isObjectLiteralExpression(node) || node.properties.some(ts.isSpreadAssignment)) return null
  return new Map(
    node.properties.map(property => [
      property.name?.getText() ?? '',
      ts.isPropertyAssignment(property) ? property.initializer : property,
    ]),
  )
}

describe('the error catalogue', () => {
  it('has every code of the contract and of the conventions with its status, and no other', () => {
    assert.deepEqual(
      Object.fromEntries(
        errorCodes()
          .map(code => [code, errorEntry(code).status])
          .sort(),
      ),
      Object.fromEntries([...statuses].sort()),
    )
  })

  it('has every code that the source raises', () => {
    const raised = literals(/\b(?:raise|AppError)\(\s*'([^']+)'/g)
    assert.ok(raised.length > 100)
    assert.deepEqual(
      raised.filter(({ code }) => !isErrorCode(code)),
      [],
    )
  })

  it('has every code that the source records or names, or the code is one of a problem', () => {
    const named = literals(/\b(?:code|notFound|missing)\??: '([A-Z][A-Z0-9_]+)'/g)
    assert.ok(named.length > 50)
    assert.deepEqual(
      named.filter(({ code }) => !isErrorCode(code) && !OTHER_CODES.includes(code)),
      [],
    )
  })

  it('declares for an operation only catalogued codes', () => {
    const declared = sources.flatMap(({ file, text }) =>
      [...text.matchAll(/\braises: \[([^\]]*)\]/g)].flatMap(match =>
        [...match[1].matchAll(/'([^']+)'/g)].map(([, code]) => ({ file, code })),
      ),
    )
    assert.ok(declared.length > 50)
    assert.deepEqual(
      declared.filter(({ code }) => !isErrorCode(code)),
      [],
    )
  })

  it('gives every code a status class with a hint, a description and a message', () => {
    for (const code of errorCodes()) {
      const { status, hint, description, message } = errorEntry(code)
      assert.ok(hinted.includes(status) || code === 'REQUEST_REJECTED', `${code} ${status}`)
      for (const text of [hint, description, message]) assert.ok(text.length > 3, code)
    }
    assert.match(errorEntry('PRECONDITION_FAILED').hint, /get the resource again/i)
    assert.match(errorEntry('REQUEST_REJECTED').hint, /size, encoding and range/)
  })

  it('has a hint where the status alone would mislead', () => {
    for (const [code, advice] of [
      ['EMBEDDING_NOT_CONFIGURED', /EMBEDDING_PROVIDER and EMBEDDING_MODEL/],
      ['FILE_ALREADY_INGESTED', /meta\.document_id.*POST \/documents\/\{document_id\}\/ingest/],
      ['FILE_HAS_DEPENDENTS', /GET \/files\/\{file_id\}\/dependents/],
      ['FILE_STORAGE_MISCONFIGURED', /FILES_.*Retrying does not help/],
      ['FILE_TOO_LARGE_FOR_SYNC', /without wait=true/],
      ['INGESTION_CALLBACK_INVALID_TOKEN', /the complete callback URL/],
      ['PDF_PARSE_FAILED', /without password protection/],
      ['QUOTA_STORAGE_EXCEEDED', /meta\.quota_id/],
      ['UNSUPPORTED_FILE_TYPE', /POST \/ingestion-rules/],
      ['UPLOAD_TOKEN_EXPIRED', /POST \/files\/presigned-url/],
      ['UPLOAD_TOKEN_NOT_FOUND', /POST \/files\/presigned-url/],
      ['UPLOAD_TOKEN_USED', /POST \/files\/presigned-url/],
      ['VERSION_CONFLICT', /its version as expected_version/],
    ] as [ErrorCode, RegExp][])
      assert.match(errorEntry(code).hint, advice, code)
  })

  it('names in its hints only calls that exist', () => {
    const routes = new Set(operations.all().map(({ method, path }) => `${method.toUpperCase()} ${path}`))
    const named = errorCodes().flatMap(code => errorEntry(code).hint.match(/\b(?:GET|POST) \/[\w/{}-]+/g) ?? [])
    assert.ok(named.length > 8)
    assert.deepEqual(
      named.filter(route => !routes.has(route)),
      [],
    )
  })

  it('says for each conflict what to do about that one', () => {
    const conflicts = errorCodes().filter(code => errorEntry(code).status === 409)
    assert.ok(conflicts.length > 50)
    const hints = conflicts.map(code => errorEntry(code).hint)
    const alike = conflicts.filter((_code, index) => hints.indexOf(hints[index]) !== hints.lastIndexOf(hints[index]))
    assert.deepEqual(alike, [])
    assert.deepEqual(
      conflicts.filter(code => errorTable.get(code).hint === undefined),
      [],
    )
  })

  it('has a message of the occurrence for everything that the source raises', () => {
    const raised = sources.flatMap(({ file, text }) => occurrences(file, text))
    assert.ok(raised.length > 300)
    const wrong = raised.flatMap(({ at, code, message, meta }) => {
      if (message || CONSTANT.includes(code)) return []
      const { message: template } = errorTable.get(code)
      if (template === undefined) return `${at} raises ${code} with the description of the code for a message`
      const needed = [...template.matchAll(/\{(\w+)\}/g)].map(([, name]) => name)
      const lacking = meta === null ? [] : needed.filter(name => !meta.includes(name))
      return lacking.length > 0 ? `${at} raises ${code} without ${lacking.join(', ')}` : []
    })
    assert.deepEqual(wrong, [])
  })

  it('keeps the constant messages', () => {
    assert.equal(errorEntry('INTERNAL_ERROR').message, 'Internal Server Error')
    assert.equal(errorEntry('UNAUTHORIZED').message, 'Unauthorized')
    assert.equal(errorEntry('FORBIDDEN').message, 'Forbidden')
  })
})

describe('an error', () => {
  it('says in its message what its meta says, as far as it does', () => {
    const message = (code: ErrorCode, meta?: Record<string, unknown>) => new AppError(code, { meta }).message
    assert.equal(message('AGENT_NOT_FOUND', { id: 'agent_1' }), 'Agent agent_1 not found in this project')
    assert.equal(message('AGENT_NOT_FOUND'), 'Agent not found in this project')
    const conflict = message('VERSION_CONFLICT', { current_version: 3, expected_version: 2 })
    assert.equal(conflict, 'The resource is at version 3, not at expected_version 2')
    // Text of callers is shown unchanged, and not much of it.
    assert.equal(message('RESOURCE_NOT_FOUND', { id: '{id} $& {code}' }), 'Resource {id} $& {code} not found')
    assert.ok(message('RESOURCE_NOT_FOUND', { id: 'x'.repeat(5000) }).length < 300)
    assert.equal(new AppError('AGENT_NOT_FOUND', { message: 'own {id}', meta: { id: 1 } }).message, 'own {id}')
  })

  const thrown = (work: () => never): AppError => {
    try {
      return work()
    } catch (error) {
      assert.ok(error instanceof AppError)
      return error
    }
  }

  it('has the status of its code; REQUEST_REJECTED has the one it is given', () => {
    assert.equal(thrown(() => raise('QUOTA_CONFLICT')).status, 409)
    assert.equal(new AppError('REQUEST_REJECTED').status, 400)
    assert.equal(new AppError('REQUEST_REJECTED', { status: 431 }).status, 431)
  })

  it('is recorded without hint and docs_url, with meta when it has one', () => {
    assert.deepEqual(new AppError('GENERATION_FAILED', { message: 'broke' }).recorded(), {
      code: 'GENERATION_FAILED',
      message: 'broke',
    })
    assert.deepEqual(new AppError('FORBIDDEN', { meta: { action: 'a:B' } }).recorded(), {
      code: 'FORBIDDEN',
      message: 'Forbidden',
      meta: { action: 'a:B' },
    })
  })

  it('of validation names its first problem and lists all', () => {
    const problems = [
      { code: 'REQUIRED', path: 'name', message: 'is required' },
      { code: 'INVALID_TYPE', path: 'tags', message: 'must be an object' },
    ]
    const error = thrown(() => raiseInvalid(problems))
    assert.equal(error.message, 'name: is required')
    assert.deepEqual(error.meta, { problems })
  })
})

describe('errors over HTTP', () => {
  const app = forSuite(() => startApp({ env: { DOCS_BASE_URL: 'https://docs.example.test/muster' } }))

  it('the served catalogue is the one in the code, with addresses under DOCS_BASE_URL', async () => {
    const { body, status } = await app.anonymous.get('//errors.json')
    assert.equal(status, 200)
    assert.deepEqual(body, errorDocument('https://docs.example.test/muster'))
    for (const [code, status] of statuses) {
      assert.equal(body[code].status, status)
      assert.equal(body[code].docs_url, `https://docs.example.test/muster/errors#${code}`)
      assert.deepEqual(Object.keys(body[code]).sort(), ['description', 'docs_url', 'hint', 'status'])
    }
  })

  it('an error has code, message, hint, docs_url, and meta only when there is any', async () => {
    const refused = await app.anonymous.get('/projects')
    assert.equal(refused.status, 401)
    assert.equal(refused.headers.get('www-authenticate'), 'Bearer')
    assert.deepEqual(refused.body, {
      error: {
        code: 'UNAUTHORIZED',
        message: 'Unauthorized',
        hint: errorEntry('UNAUTHORIZED').hint,
        docs_url: 'https://docs.example.test/muster/errors#UNAUTHORIZED',
      },
    })
    const user = await app.user()
    const forbidden = await user.post('/users', {})
    assert.equal(forbidden.status, 403)
    assert.equal(forbidden.body.error.message, 'Forbidden')
    assert.deepEqual(forbidden.body.error.meta, { action: 'users:CreateUser' })
  })

  it('a failure of validation lists every problem by its path in wire names', async () => {
    const { status, body } = await app.admin.post('/webhooks', {
      project_id: (await app.project()).id,
      name: 5,
      events: ['*'],
      surprise: true,
    })
    assert.equal(status, 400)
    assert.equal(body.error.code, 'VALIDATION_FAILED')
    const paths = body.error.meta.problems.map((problem: { path: string }) => problem.path)
    assert.deepEqual(paths.sort(), ['name', 'surprise', 'url'])
    for (const problem of body.error.meta.problems) {
      assert.deepEqual(Object.keys(problem).sort(), ['code', 'message', 'path'])
      assert.match(problem.code, /^[A-Z][A-Z0-9_]*$/)
    }
  })

  it('a path into a list carries its index', async () => {
    const { body } = await app.admin.post('/webhooks', {
      project_id: (await app.project()).id,
      name: 'x',
      url: 'http://127.0.0.1:9/',
      events: ['actors.created', 7],
    })
    assert.equal(body.error.meta.problems[0].path, 'events[1]')
  })

  it('an unhandled failure says nothing of its cause, which is in the log under the request id', async () => {
    const { id, key } = await app.project()
    await app.services.pool.query(sql.unsafe`alter table actors rename to actors_elsewhere`)
    try {
      for (const reply of [
        await key.get('/actors', { 'x-request-id': 'read-of-a-lost-table' }),
        await app.admin.post('/actors', { project_id: id, name: 'x' }, { 'x-request-id': 'write-of-a-lost-table' }),
      ]) {
        assert.equal(reply.status, 500)
        assert.deepEqual(reply.body, {
          error: {
            code: 'INTERNAL_ERROR',
            message: 'Internal Server Error',
            hint: errorEntry('INTERNAL_ERROR').hint,
            docs_url: 'https://docs.example.test/muster/errors#INTERNAL_ERROR',
          },
        })
        const line = app.logs.find(
          line => line.includes('"level":"error"') && line.includes(reply.headers.get('x-request-id') as string),
        )
        assert.match(line ?? '', /actors.* does not exist/)
      }
    } finally {
      await app.services.pool.query(sql.unsafe`alter table actors_elsewhere rename to actors`)
    }
  })

  it('every kind answers a missing id in its path with a 404 that is never the 400 of a body', async () => {
    for (const kind of [
      'agents',
      'actors',
      'ai-providers',
      'conversations',
      'generations',
      'sessions',
      'secrets',
      'quotas',
    ]) {
      const { status, body } = await app.admin.get(`/${kind}/missing`)
      assert.equal(status, 404, kind)
      assert.equal(statuses.get(body.error.code), 404)
      assert.deepEqual(body.error.meta, { id: 'missing' })
    }
  })

  it('a missing reference in a body has the status of its error code', async () => {
    const { id } = await app.project()
    for (const [path, body, code] of [
      ['/agents', { name: 'a', ai_provider_id: 'aip_missing' }, 'AI_PROVIDER_NOT_FOUND'],
      ['/sessions', { agent_id: 'agent_missing' }, 'AGENT_NOT_FOUND'],
      ['/actors', { name: 'a', agent_id: 'agent_missing' }, 'AGENT_NOT_FOUND'],
    ] as [string, object, ErrorCode][]) {
      const reply = await app.admin.post(path, { project_id: id, ...body })
      assert.deepEqual([reply.status, reply.body.error.code], [statuses.get(code), code], path)
    }
  })
})

describe('with ERROR_LOGS_ENABLED=false', () => {
  it('the cause of a failure is not logged, the request still is', async () => {
    const app = await startApp({ env: { ERROR_LOGS_ENABLED: 'false' } })
    try {
      await app.services.pool.query(sql.unsafe`alter table actors rename to actors_elsewhere`)
      const { status } = await app.admin.get('/actors', { 'x-request-id': 'quiet-failure' })
      assert.equal(status, 500)
      const lines = app.logs.filter(line => line.includes('quiet-failure'))
      assert.equal(lines.length, 1)
      assert.match(lines[0], /"status":500/)
    } finally {
      await app.close()
    }
  })
})
