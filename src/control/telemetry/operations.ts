import { kinds } from '#core/api/kind.ts'
import { itemOperation, type Operation } from '#core/api/operation.ts'
import { systemClock } from '#core/base/clock.ts'
import { raise } from '#core/base/errors.ts'
import { processSingleton } from '#core/base/process-singleton.ts'
import { uniqueBytes } from '#core/base/random-block.ts'
import type { Services } from '#core/base/services.ts'
import { otlpSpan } from '#core/base/span-targets.ts'
import { MUSTER } from '#core/base/telemetry-names.ts'
import type { Queryable } from '#core/db/sql.ts'
import { principalRecord } from '#core/iam/caller.ts'
import { sealJson } from '#core/secrets/json.ts'
import { projectKind } from '#identity/projects/model.ts'
import { secretKind } from '#identity/secrets/model.ts'
import { checkTokens, tokenIds } from '#identity/secrets/resolve.ts'
import { sealedForTarget, TARGET_CHANNEL, type TargetRow, Telemetry, TelemetryInput, TelemetryTest } from './model.ts'
import { otlpBody, postSpans, READ_CONTENT } from './send.ts'
import { deleteTarget, findLag, findTarget, putTarget } from './store.ts'

const tag = 'Projects'
const path = '/projects/{project_id}/telemetry'

const NO_TARGET = 'The project has no telemetry target'

const WITHOUT_TARGET = {
  endpoint: null,
  header_names: [],
  sample_ratio: 1,
  content: 'none',
  kinds: [],
  last_exported_at: null,
  lag_seconds: null,
  dropped: 0,
  last_error: null,
}

async function present(db: Queryable, projectId: string, row: TargetRow | null) {
  if (!row) return WITHOUT_TARGET
  const { project_id: _, author, sealed_headers, failures, batch_rows, updated_at, ...shown } = row
  return { ...shown, lag_seconds: await findLag(db, projectId) }
}

/** Returns the body of a request with one span that has just ended. */
function testBody(projectId: string): { trace_id: string; body: string } {
  const endedAt = systemClock.now().getTime()
  const traceId = uniqueBytes(16).toString('hex')
  const span = otlpSpan({
    traceId,
    spanId: uniqueBytes(8).toString('hex'),
    name: 'test',
    kind: 1,
    parentSpanId: null,
    startedAt: endedAt - 1,
    endedAt,
    isFailed: false,
    attributes: { [MUSTER.project]: projectId },
    links: [],
    events: [],
    content: null,
  })
  return { trace_id: traceId, body: otlpBody([JSON.stringify(span)]) }
}

type TestResult = Awaited<ReturnType<typeof sendTest>>

/** Tests in progress by target. */
const testsInProgress = processSingleton(() => new Map<string, Promise<TestResult>>())

/** Sends one span; calls at the same time get the outcome of one request, so that a slow receiver has one of a process. */
function testTarget(services: Services, target: TargetRow): Promise<TestResult> {
  const tests = testsInProgress(services)
  const key = `${target.project_id} ${target.updated_at}`
  const test = tests.get(key) ?? sendTest(services, target).finally(() => tests.delete(key))
  tests.set(key, test)
  return test
}

async function sendTest(services: Services, target: TargetRow) {
  const { trace_id, body } = testBody(target.project_id)
  return { ...(await postSpans(services, target, body)), trace_id }
}

export const telemetryOperations: Operation[] = [
  itemOperation(projectKind, {
    id: 'getProjectTelemetry',
    command: ['projects', 'telemetry', 'get'],
    method: 'get',
    path,
    summary: 'Get the telemetry target of a project',
    description: 'Returns where the spans of the project are sent, and how many wait or were dropped.',
    tag,
    action: 'projects:GetTelemetry',
    answers: { 200: Telemetry },
    raises: ['API_KEY_PROJECT_SCOPE'],
    run: async ({ db, resource: { id } }) => present(db, id, await findTarget(db, id)),
  }),
  itemOperation(projectKind, {
    id: 'putProjectTelemetry',
    command: ['projects', 'telemetry', 'replace'],
    method: 'put',
    path,
    summary: 'Set the telemetry target of a project',
    description:
      'Replaces all settings. Without an endpoint, spans that are not sent are deleted. A reference to a secret requires `secrets:UseSecret` on it. Content is sent as long as the caller may read the traces of the project, and requires `traces:GetTrace`.',
    tag,
    action: 'projects:UpdateTelemetry',
    alsoActions: ['secrets:UseSecret', READ_CONTENT],
    body: TelemetryInput,
    answers: { 200: Telemetry },
    raises: ['API_KEY_PROJECT_SCOPE', 'SECRET_NOT_FOUND'],
    async run({ tx, body, resource: { id: project_id }, allow, audit, caller, services }) {
      const { endpoint, headers, ...settings } = body
      tx.invalidate(TARGET_CHANNEL, project_id)
      if (endpoint === null) {
        await deleteTarget(tx, project_id)
        return WITHOUT_TARGET
      }
      audit.detail = { ...audit.detail, endpoint_host: new URL(endpoint).host, header_names: Object.keys(headers) }
      const texts = Object.values(headers)
      for (const id of tokenIds(texts)) allow('secrets:UseSecret', { kind: secretKind, row: { id, project_id } })
      if (settings.content === 'full') allow(READ_CONTENT, { kind: kinds.get('trace'), project_id })
      await checkTokens(tx, project_id, texts)
      const row = await putTarget(tx, {
        project_id,
        endpoint,
        sealed_headers: sealJson(services, headers, sealedForTarget(project_id)),
        header_names: Object.keys(headers),
        author: principalRecord(caller),
        ...settings,
      })
      return present(tx, project_id, row)
    },
  }),
  itemOperation(projectKind, {
    id: 'testProjectTelemetry',
    command: ['projects', 'telemetry', 'test'],
    method: 'post',
    path: `${path}/test`,
    summary: 'Test the telemetry target of a project',
    description:
      'Sends one span to the receiver and returns its response. Calls at the same time get the response to one request.',
    tag,
    action: 'projects:UpdateTelemetry',
    transaction: false,
    answers: { 200: TelemetryTest },
    raises: ['API_KEY_PROJECT_SCOPE', 'RESOURCE_NOT_FOUND'],
    async run({ db, resource: { id }, services }) {
      const target = (await findTarget(db, id)) ?? raise('RESOURCE_NOT_FOUND', { message: NO_TARGET, meta: { id } })
      return testTarget(services, target)
    },
  }),
]
