import { Alert, Badge, Group, Progress, Stack, Table, Text } from '@mantine/core'
import type { Decider, DeciderQuestion, Decision, DecisionAnswer } from '@muster/client'
import { listDecisions } from '@muster/client/operations'
import { useQuery } from '@tanstack/react-query'
import { api, POLL_MS } from '#api.ts'
import { useAgents, useTools } from '#choices.ts'
import { EntityLink } from '#components/entity-link.tsx'
import { ChoiceField, type Column, ListView, RecordLink, TableHead, useList } from '#components/list.tsx'
import { Section } from '#components/record.tsx'
import { Loaded } from '#components/states.tsx'
import { Status, statusText } from '#components/status.tsx'
import { visible, When } from '#components/text.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.deciders

const STATUSES = ['queued', 'running', 'completed', 'failed'] as const
/** Decisions that the figures count. */
const COUNTED = 100

const percentText = (fraction: number): string =>
  fraction.toLocaleString(undefined, { style: 'percent', maximumFractionDigits: 1 })

/** The agent or the tool that answers. */
export function AnsweredBy({ agent_id, tool_id }: Pick<Decider, 'agent_id' | 'tool_id'>) {
  const projectId = useProjectId()
  const agents = useAgents(projectId)
  const tools = useTools(projectId)
  if (agent_id) return <EntityLink kind="agent" id={agent_id} projectId={projectId} name={agents.nameOf(agent_id)} />
  if (tool_id) return <EntityLink kind="tool" id={tool_id} projectId={projectId} name={tools.nameOf(tool_id)} />
  return <>{strings.none}</>
}

/** Returns the answer to a question in a word. */
function answerText(answer: DecisionAnswer, question: DeciderQuestion | undefined): string {
  if (answer.type === 'predicate') return answer.probability >= 0.5 ? texts.yes : texts.no
  if (answer.type === 'choice') return visible(answer.choice)
  const level = question?.type === 'score' ? question.levels[Math.round(answer.score)] : undefined
  return level ? visible(level.label) : answer.score.toLocaleString()
}

/** Returns the numbers of an answer. */
function answerNotes(answer: DecisionAnswer, question: DeciderQuestion | undefined): string[] {
  if (answer.type === 'predicate') return [texts.probability(percentText(answer.probability))]
  const notes: string[] = []
  if (answer.type === 'score') {
    const highest = question?.type === 'score' ? question.levels.length - 1 : undefined
    const score = answer.score.toLocaleString(undefined, { maximumFractionDigits: 2 })
    if (highest !== undefined) notes.push(texts.scoreOf(score, highest))
  }
  const options = answer.probabilities ?? []
  for (const option of options) {
    const name = 'label' in option ? option.label : option.value
    notes.push(`${visible(name)} ${percentText(option.probability)}`)
  }
  if (answer.confidence !== undefined) notes.push(`${texts.confidence} ${percentText(answer.confidence)}`)
  return notes
}

/** The answers of a decision with their questions, as far as these are known. */
export function Answers({ answers, questions }: { answers: DecisionAnswer[]; questions: DeciderQuestion[] }) {
  return (
    <Table verticalSpacing="sm" horizontalSpacing="md" className="rows" aria-label={texts.answers}>
      <TableHead titles={[texts.question, texts.answer]} />
      <Table.Tbody>
        {answers.map(answer => {
          const question = questions.find(({ name }) => name === answer.name)
          return (
            <Table.Tr key={answer.name}>
              <Table.Td className="wide">
                <Text fw={600}>{visible(answer.name)}</Text>
                {question && (
                  <Text size="sm" c="dimmed">
                    {visible(question.instructions)}
                  </Text>
                )}
              </Table.Td>
              <Table.Td data-title={texts.answer}>
                <Text fw={600}>{answerText(answer, question)}</Text>
                <Text size="sm" c="dimmed">
                  {answerNotes(answer, question).join(' · ')}
                </Text>
              </Table.Td>
            </Table.Tr>
          )
        })}
      </Table.Tbody>
    </Table>
  )
}

/** The outcome of a decision: its answers, its error, or that it is not made yet. */
export function Outcome({ decision, questions }: { decision: Decision; questions: DeciderQuestion[] }) {
  const { status, answers, error } = decision
  return (
    <Stack gap="md">
      <Group role="status">
        <Status status={status} />
      </Group>
      {error && (
        <Alert color="red" title={error.code}>
          <Text size="sm">{visible(error.message)}</Text>
        </Alert>
      )}
      {answers && <Answers answers={answers} questions={questions} />}
    </Stack>
  )
}

/** Decisions of a decider, or of the project, the newest first. */
export function DecisionList({ deciderId, questions = [] }: { deciderId?: string; questions?: DeciderQuestion[] }) {
  const projectId = useProjectId()
  const list = useList<Decision>(
    ['decisions', projectId, deciderId],
    async ({ status }, bounds, signal) => {
      const chosen = STATUSES.filter(each => each === status)
      const args = { project_id: projectId, decider_id: deciderId, status: chosen, ...bounds }
      return listDecisions(api, args, { signal }).page()
    },
    { pollMs: POLL_MS },
  )
  const columns: Column<Decision>[] = [
    {
      title: texts.decision,
      isWide: true,
      cell: ({ id, decider_id, answers }) => (
        <>
          <RecordLink to={`/p/${projectId}/deciders/${decider_id ?? 'none'}/decisions/${id}`}>{id}</RecordLink>
          <Group gap={6} mt={4}>
            {answers?.map(answer => (
              <Badge key={answer.name} variant="default" tt="none">
                {visible(answer.name)}:{' '}
                {answerText(
                  answer,
                  questions.find(({ name }) => name === answer.name),
                )}
              </Badge>
            ))}
          </Group>
        </>
      ),
    },
    { title: strings.status, cell: ({ status }) => <Status status={status} /> },
    {
      title: strings.version,
      cell: ({ decider_version }) => decider_version ?? (deciderId ? strings.none : texts.inline),
    },
    { title: texts.answeredBy, cell: decision => <AnsweredBy {...decision} /> },
    { title: strings.created, cell: ({ created_at }) => <When at={created_at} /> },
  ]
  return (
    <ListView
      label={texts.decisions}
      list={list}
      operation={listDecisions}
      columns={columns}
      fields={
        <ChoiceField
          name="status"
          label={strings.status}
          choices={STATUSES.map(value => ({ value, label: statusText(value) }))}
        />
      }
      empty={<Text c="dimmed">{texts.emptyDecisions}</Text>}
    />
  )
}

/** How the newest decisions of a decider answered its questions. */
export function DecisionFigures({ deciderId, questions }: { deciderId: string; questions: DeciderQuestion[] }) {
  const projectId = useProjectId()
  const newest = useQuery<Decision[]>({
    queryKey: ['decisions', projectId, deciderId, 'newest'],
    queryFn: async ({ signal }) =>
      (
        await listDecisions(
          api,
          { project_id: projectId, decider_id: deciderId, status: ['completed', 'failed'], limit: COUNTED },
          { signal },
        ).page()
      ).data,
  })
  return (
    <Loaded query={newest} operation={listDecisions} rows={1}>
      {decisions => {
        if (decisions.length === 0) return null
        const failed = decisions.filter(({ status }) => status === 'failed').length
        return (
          <Section title={texts.figures}>
            <Text size="sm" c="dimmed">
              {texts.figuresOf(decisions.length)}
              {failed > 0 && ` · ${texts.failedOf(failed, decisions.length)}`}
            </Text>
            {questions.map(question => (
              <Distribution
                key={question.name}
                question={question}
                answers={decisions.flatMap(({ answers }) => answers?.find(({ name }) => name === question.name) ?? [])}
              />
            ))}
          </Section>
        )
      }}
    </Loaded>
  )
}

/** How often each answer to a question was given. */
function Distribution({ question, answers }: { question: DeciderQuestion; answers: DecisionAnswer[] }) {
  const counts = new Map<string, number>()
  for (const answer of answers) {
    const text = answerText(answer, question)
    counts.set(text, (counts.get(text) ?? 0) + 1)
  }
  const shown = [...counts].sort(([, first], [, second]) => second - first)
  return (
    <Stack gap={4}>
      <Text fw={600}>{visible(question.name)}</Text>
      {shown.length === 0 && <Text c="dimmed">{texts.noFigures}</Text>}
      {shown.map(([option, count]) => {
        const text = texts.share(option, count, percentText(count / answers.length))
        return (
          <div key={option}>
            <Text size="sm">{text}</Text>
            <Progress value={(count / answers.length) * 100} aria-label={text} />
          </div>
        )
      })}
    </Stack>
  )
}
