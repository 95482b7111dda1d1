import itemFields from 'fields:createDatasetItemFromGeneration'
import { Alert, Badge, Button, Card, Group, Stack, Text } from '@mantine/core'
import { useTimeout } from '@mantine/hooks'
import type { StoredGuardrailEvaluation, Transcript } from '@muster/client'
import {
  createDatasetItemFromGeneration,
  getGenerationTranscript,
  getOrchestrationQueueStats,
  getTrace,
  getTraceTree,
  listDatasets,
  listGuardrailEvaluations,
} from '@muster/client/operations'
import { IconAlertTriangle, IconRobot, IconSearch, IconShieldCheck, IconTool, IconUser } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { memo, Suspense, useState } from 'react'
import { api, every, POLL_MS } from '#api.ts'
import { FormButton, useAction } from '#components/actions.tsx'
import { useDatasetSelect } from '#components/dataset-select.tsx'
import { DraftScope } from '#components/draft.tsx'
import { onDemand } from '#components/on-demand.tsx'
import { SchemaForm } from '#components/schema-form.tsx'
import { FailureAlert } from '#components/states.tsx'
import { StreamingText } from '#components/streaming-text.tsx'
import { CopyText, costText, durationText, TextButton, visible } from '#components/text.tsx'
import { Value } from '#components/value.tsx'
import { callsOf, type ToolCall } from '#graph/waterfall.ts'
import { meant } from '#json.ts'
import { usePermissions, useProjectId } from '#projects.ts'
import { useConfig } from '#session/gate.tsx'
import * as strings from '#strings.ts'
import { type ClientCall, clientCalls, type Step, settledSteps, type Turn } from './turn.ts'

const Markdown = onDemand(async () => (await import('#components/markdown.tsx')).default)

/** Time after which a turn that has not begun is explained. */
const LATE_MS = 5000

const texts = strings.playground

/** What the record of a turn adds to its stream: arguments, results, knowledge, and what guardrails decided. */
function useRecord(turn: Turn): { transcript?: Transcript; verdicts: StoredGuardrailEvaluation[] } {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { generationId: id, result, endedMs } = turn
  const settled = settledSteps(turn)
  const isTold = id !== undefined && (settled > 0 || endedMs !== undefined)
  const transcript = useQuery<Transcript>({
    queryKey: ['generation', id, 'transcript', settled, result?.status],
    queryFn: async ({ signal }) => getGenerationTranscript(api, { generation_id: id as string }, { signal }),
    enabled: isTold && Boolean(isAllowed(getGenerationTranscript) && isAllowed(getTrace)),
    placeholderData: previous => previous,
    staleTime: Number.POSITIVE_INFINITY,
  })
  const verdicts = useQuery<StoredGuardrailEvaluation[]>({
    queryKey: ['guardrail-evaluations', id, settled, result?.status],
    queryFn: async ({ signal }) => {
      const args = { project_id: projectId, generation_id: id, limit: 100 }
      return (await listGuardrailEvaluations(api, args, { signal }).page()).data
    },
    enabled: isTold && isAllowed(listGuardrailEvaluations) === true,
    placeholderData: previous => previous,
    staleTime: Number.POSITIVE_INFINITY,
  })
  return { transcript: transcript.data, verdicts: verdicts.data ?? [] }
}

type Props = {
  turn: Turn
  agentId: string
  onAnswer: (outputs: Record<string, unknown>) => void
  /** Begins again from this turn. */
  onFork: () => void
}

/** A turn: the prompt, each step as it arrives, and the usage and times of the steps that have ended. */
export const TurnCard = memo(
  function TurnCard({ turn, agentId, onAnswer, onFork }: Props) {
    const { prompt, steps, result, error, endedMs, isStopped } = turn
    const projectId = useProjectId()
    const { transcript, verdicts } = useRecord(turn)
    const calls = new Map((transcript?.steps ?? []).flatMap(callsOf).map(call => [call.id, call]))
    const waiting = clientCalls(turn)
    return (
      <Stack gap="sm" component="article" aria-label={visible(prompt.slice(0, 80))}>
        <Card padding="md" radius="lg" withBorder bg="var(--mantine-color-default-hover)">
          <Group gap="xs" mb={4}>
            <IconUser size={16} aria-hidden />
            <Text size="sm" fw={600}>
              {texts.you}
            </Text>
            {endedMs !== undefined && (
              <Group ml="auto">
                <TextButton onClick={onFork}>{texts.fork}</TextButton>
              </Group>
            )}
          </Group>
          <Text component="div" className="wrap">
            {visible(prompt)}
          </Text>
        </Card>
        <Card padding="md" radius="lg" withBorder>
          <Stack gap="md" aria-busy={endedMs === undefined}>
            {transcript && <Given transcript={transcript} />}
            {steps.map((step, index) => (
              <StepView
                key={index}
                step={step}
                isRunning={endedMs === undefined}
                call={step.kind === 'tool' ? calls.get(step.id) : undefined}
              />
            ))}
            {steps.length === 0 && endedMs === undefined && <Waiting isStarted={turn.generationId !== undefined} />}
            {verdicts.length > 0 && <Verdicts verdicts={verdicts} />}
            {error !== undefined && <FailureAlert error={error} title={strings.sessions.turnFailed} />}
            {isStopped && (
              <Text size="sm" c="dimmed">
                {texts.stopped}
              </Text>
            )}
            {waiting.length > 0 && <ClientTools calls={waiting} onAnswer={onAnswer} />}
            {result?.status === 'requires_action' && waiting.length === 0 && (
              <Group gap="sm">
                <Text size="sm">{texts.paused}</Text>
                <Button component={Link} to={`/p/${projectId}/inbox`} variant="default" size="xs">
                  {texts.inbox}
                </Button>
              </Group>
            )}
            {endedMs !== undefined && <Footer turn={turn} agentId={agentId} />}
          </Stack>
        </Card>
      </Stack>
    )
  },
  // The callbacks depend on nothing but the place of the turn.
  (before, after) => before.turn === after.turn && before.agentId === after.agentId,
)

/** A turn without a step; after a while with the reason, as far as the user may see the queue. */
function Waiting({ isStarted }: { isStarted: boolean }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const [isLong, setLong] = useState(false)
  useTimeout(() => setLong(true), LATE_MS, { autoInvoke: true })
  const isLate = isLong && !isStarted
  const { data: stats } = useQuery({
    queryKey: ['queue-stats', projectId],
    queryFn: async ({ signal }) => getOrchestrationQueueStats(api, { project_id: projectId }, { signal }),
    enabled: isLate && isAllowed(getOrchestrationQueueStats) === true,
    refetchInterval: every(POLL_MS),
  })
  const isUnserved = stats?.missing_workers.includes('generation')
  return (
    <>
      <Text c="dimmed" size="sm">
        {texts.running} …
      </Text>
      {isLate && isUnserved && (
        <Alert icon={<IconAlertTriangle />} color="yellow" title={texts.unserved} role="status">
          {texts.unservedText}
        </Alert>
      )}
      {isLate && !isUnserved && (
        <Text size="sm" role="status">
          {texts.late}
        </Text>
      )}
    </>
  )
}

/** Knowledge that was given to the turn, and its messages as they were sent. */
function Given({ transcript: { knowledge, input } }: { transcript: Transcript }) {
  const [isOpen, setOpen] = useState(false)
  if (!knowledge && !input) return null
  return (
    <Stack gap={6}>
      <Group gap="sm">
        <IconSearch size={16} aria-hidden />
        <Text size="sm">{knowledge ? texts.knowledge(knowledge.results.length) : texts.noKnowledge}</Text>
        <TextButton onClick={() => setOpen(!isOpen)}>{isOpen ? strings.less : texts.asSent}</TextButton>
      </Group>
      {isOpen && (
        <>
          {knowledge && <Value value={knowledge.error ?? knowledge.results} label={strings.traces.knowledge} />}
          {input && <Value value={input} label={texts.asSent} />}
        </>
      )}
    </Stack>
  )
}

function Verdicts({ verdicts }: { verdicts: StoredGuardrailEvaluation[] }) {
  return (
    <Stack gap={6}>
      {verdicts.map(({ tool, decision, class: rule, guardrail_id, scope }, index) => (
        <Group gap="sm" key={index}>
          <IconShieldCheck size={16} aria-hidden />
          <Text size="sm">
            {texts.guardrail(scope)} <span className="mono">{visible(tool ?? guardrail_id)}</span>
          </Text>
          <Badge variant={decision === 'execute' ? 'default' : 'filled'} color="red.9" size="sm">
            {texts.decisions[decision]}
          </Badge>
          <Text size="xs" c="dimmed">
            {texts.rule(rule)}
          </Text>
        </Group>
      ))}
    </Stack>
  )
}

/** A form for the results of client tools, which the application runs, and a user of the console enters. */
function ClientTools({
  calls,
  onAnswer,
}: {
  calls: ClientCall[]
  onAnswer: (outputs: Record<string, unknown>) => void
}) {
  return (
    <Card withBorder radius="md" padding="md">
      <Stack gap="md">
        <Text size="sm" fw={600}>
          {texts.clientTools}
        </Text>
        {calls.map(({ tool_call_id, tool_name, args }) => (
          <Stack gap={4} key={tool_call_id}>
            <Text size="sm">
              {texts.toolCall} <span className="mono">{visible(tool_name)}</span>
            </Text>
            <Value value={args} label={`${strings.traces.arguments} ${tool_name}`} />
          </Stack>
        ))}
        <SchemaForm
          schema={{
            properties: Object.fromEntries(
              calls.map(({ tool_call_id, tool_name }) => [
                tool_call_id,
                { type: 'string', maxLength: 100_000, title: texts.resultOf(tool_name), description: texts.resultHelp },
              ]),
            ),
            required: calls.map(({ tool_call_id }) => tool_call_id),
          }}
          submitLabel={texts.submitResults}
          onSubmit={values =>
            onAnswer(Object.fromEntries(Object.entries(values).map(([id, text]) => [id, meant(text)])))
          }
        />
      </Stack>
    </Card>
  )
}

function Footer({
  turn: { prompt, result, firstMs, endedMs = 0, generationId },
  agentId,
}: {
  turn: Turn
  agentId: string
}) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { base_url } = useConfig()
  const quoted = (text: string) => `'${text.replaceAll("'", "'\\''")}'`
  const curl = `curl '${base_url}/api/v1/agents/${agentId}/generate?wait=true' \\
  -H "Authorization: Bearer $MUSTER_KEY" \\
  -H 'Content-Type: application/json' \\
  -d ${quoted(JSON.stringify({ prompt }))}`
  const command = `muster agents generate ${agentId} --prompt ${quoted(prompt.startsWith('@') ? `@${prompt}` : prompt)} --wait`
  const code = `import { Muster } from '@muster/client'

const muster = new Muster({ baseUrl: '${base_url}', token: process.env.MUSTER_KEY })
const turn = muster.agents.generateStream({ agent_id: '${agentId}', prompt: ${JSON.stringify(prompt)} })
for await (const piece of turn.text()) process.stdout.write(piece)`
  return (
    <Stack gap="sm" pt="sm" style={{ borderTop: '1px solid var(--mantine-color-default-border)' }}>
      <Group gap="lg">
        {firstMs !== undefined && <Figure label={texts.first} value={durationText(firstMs)} />}
        <Figure label={texts.total} value={durationText(endedMs)} />
        {result?.usage && (
          <>
            <Figure
              label={texts.tokens}
              value={`${result.usage.input_tokens.toLocaleString()} + ${result.usage.output_tokens.toLocaleString()}`}
            />
            <Figure label={texts.cost} value={costText(result.usage.cost_usd)} />
          </>
        )}
        {result && <Figure label={strings.version} value={String(result.agent_version)} />}
      </Group>
      <Group gap="sm">
        {generationId && isAllowed(getTraceTree) && (
          <Button component={Link} to={`/p/${projectId}/traces/${generationId}`} variant="default" size="xs">
            {strings.runs.trace}
          </Button>
        )}
        {generationId &&
          result?.status === 'completed' &&
          isAllowed(createDatasetItemFromGeneration) &&
          isAllowed(listDatasets) && (
            <FormButton
              label={texts.saveItem}
              variant="default"
              size="xs"
              form={close => (
                <DraftScope value={generationId}>
                  <ItemForm generationId={generationId} onDone={close} />
                </DraftScope>
              )}
            />
          )}
        <Group gap="sm" ml="auto">
          <CopyText text={curl} label={`${texts.copyAs} curl`} />
          <CopyText text={command} label="CLI" />
          <CopyText text={code} label="TypeScript" />
        </Group>
      </Group>
    </Stack>
  )
}

/** Saves a turn as an item of a dataset. */
function ItemForm({ generationId, onDone }: { generationId: string; onDone: () => void }) {
  const projectId = useProjectId()
  const dataset = useDatasetSelect(projectId)
  const save = useAction({
    run: async (values: object) =>
      createDatasetItemFromGeneration(api, {
        dataset_id: await dataset.datasetId(),
        generation_id: generationId,
        ...values,
      }),
    stale: [['datasets'], ['dataset']],
    message: texts.savedItem,
    onDone,
  })
  return (
    <Stack gap="md">
      {dataset.field}
      <SchemaForm
        schema={itemFields}
        omit={['generation_id']}
        isPending={save.isPending}
        error={save.error ?? dataset.error}
        onSubmit={values => dataset.isReady && save.mutate(values)}
        onCancel={onDone}
      />
    </Stack>
  )
}

function Figure({ label, value }: { label: string; value: string }) {
  return (
    <Stack gap={0}>
      <Text size="xs" c="dimmed">
        {label}
      </Text>
      <Text size="sm" fw={600} style={{ fontVariantNumeric: 'tabular-nums' }}>
        {value}
      </Text>
    </Stack>
  )
}

function StepView({ step, isRunning, call }: { step: Step; isRunning: boolean; call?: ToolCall }) {
  if (step.kind === 'restarted')
    return (
      <Text size="sm" c="dimmed">
        {texts.restarted(step.number)}
      </Text>
    )
  if (step.kind === 'tool') return <ToolView step={step} call={call} />
  const { number, text, finish, tokens, cost } = step
  const isStreaming = isRunning && finish === undefined
  return (
    <Stack gap={6}>
      <Group gap="sm">
        <IconRobot size={16} aria-hidden />
        <Text size="sm" fw={600}>
          {texts.modelCall(number)}
        </Text>
        {tokens !== undefined && (
          <Text size="sm" c="dimmed">
            {tokens.toLocaleString()} {texts.tokens.toLowerCase()}
            {/* A step is priced with its turn. */}
            {cost != null && `, ${costText(cost)}`}
          </Text>
        )}
        {finish && (
          <Badge variant="default" size="sm">
            {visible(finish)}
          </Badge>
        )}
      </Group>
      {isStreaming ? (
        <StreamingText text={text} />
      ) : (
        text && (
          <Suspense fallback={<Text className="wrap">{visible(text)}</Text>}>
            <Markdown text={text} />
          </Suspense>
        )
      )}
    </Stack>
  )
}

function ToolView({ step: { name, ok, ms }, call }: { step: Extract<Step, { kind: 'tool' }>; call?: ToolCall }) {
  const [isOpen, setOpen] = useState(false)
  const state = ok === undefined ? texts.running : ok ? texts.succeeded : texts.failedCall
  return (
    <Stack gap={6}>
      <Group gap="sm" align="center">
        <IconTool size={16} aria-hidden />
        <Text size="sm">
          {texts.toolCall} <span className="mono">{visible(name)}</span>
        </Text>
        <Badge variant="default" size="sm">
          {state}
        </Badge>
        {ms !== undefined && (
          <Text size="sm" c="dimmed">
            {durationText(ms)}
          </Text>
        )}
        {call && <TextButton onClick={() => setOpen(!isOpen)}>{isOpen ? strings.less : texts.callDetails}</TextButton>}
      </Group>
      {isOpen && call && (
        <>
          <Value value={call.args} label={`${strings.traces.arguments} ${name}`} />
          <Value value={call.error ?? call.result} label={`${strings.runs.result} ${name}`} />
        </>
      )}
    </Stack>
  )
}
