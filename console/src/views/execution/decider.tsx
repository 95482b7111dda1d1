import { Anchor, Group, List, SegmentedControl, Stack, Text } from '@mantine/core'
import type { Decider, DeciderQuestion, Decision } from '@muster/client'
import {
  compareDeciderVersions,
  createDecision,
  deleteDecider,
  getDecider,
  getDecision,
  listDeciderVersions,
  listDecisions,
  restoreDeciderVersion,
  updateDecider,
} from '@muster/client/operations'
import { IconEdit } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { Link } from '@tanstack/react-router'
import { useState } from 'react'
import { useIds } from '#address.ts'
import { api, BUSY_MS, every } from '#api.ts'
import { FormButton, useAction } from '#components/actions.tsx'
import { DraftScope } from '#components/draft.tsx'
import type { Read } from '#components/guarded-save.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Facts, IdLine, Section, type Tab } from '#components/record.tsx'
import { RemoveButton } from '#components/record-page.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { Loaded } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { Versions } from '#components/versions.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'
import { DeciderForm, readDecider } from './decider-form.tsx'
import { AnsweredBy, DecisionFigures, DecisionList, Outcome } from './decisions.tsx'

const texts = strings.deciders

/** A decider: its questions, a trial, the decisions that it made, and its versions. */
export function DeciderView() {
  const { deciderId } = useIds()
  const decider = useQuery<Read<Decider>>({
    queryKey: ['decider', deciderId],
    queryFn: ({ signal }) => readDecider(deciderId, signal),
  })
  return (
    <Loaded query={decider} operation={getDecider}>
      {read => <DeciderPage read={read} />}
    </Loaded>
  )
}

function DeciderPage({ read }: { read: Read<Decider> }) {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { id, name, description, questions, version } = read.record
  const tabs: Tab[] = [
    { value: 'questions', title: texts.questions, content: () => <Questions decider={read.record} /> },
  ]
  if (isAllowed(createDecision))
    tabs.push({ value: 'try', title: texts.try, content: () => <Trial decider={read.record} /> })
  if (isAllowed(listDecisions))
    tabs.push({
      value: 'decisions',
      title: texts.decisions,
      content: () => (
        <Stack gap="lg">
          <DecisionFigures deciderId={id} questions={questions} />
          <DecisionList deciderId={id} questions={questions} />
        </Stack>
      ),
    })
  if (isAllowed(listDeciderVersions))
    tabs.push({
      value: 'versions',
      title: strings.versions,
      content: () => (
        <Versions
          queryKey={['decider', id]}
          current={version}
          ids={{ decider_id: id }}
          operations={{
            list: listDeciderVersions,
            compare: compareDeciderVersions,
            restore: restoreDeciderVersion,
          }}
          stale={[['decider', id], ['deciders']]}
        />
      ),
    })
  return (
    <Page
      title={name}
      intro={description && visible(description)}
      actions={
        <>
          <RemoveButton
            operation={deleteDecider}
            ids={{ decider_id: id }}
            question={texts.deleteText}
            stale={[['deciders', projectId]]}
            list="deciders"
          />
          {isAllowed(updateDecider) && (
            <FormButton
              label={strings.edit}
              leftSection={<IconEdit size={16} />}
              modalSize="xl"
              form={close => <DeciderForm first={read} onDone={close} onCancel={close} />}
            />
          )}
        </>
      }
    >
      <AddressTabs tabs={tabs} />
    </Page>
  )
}

const optionsOf = (question: DeciderQuestion): { name: string; description: string }[] => {
  if (question.type === 'choice') return question.choices.map(({ value, ...option }) => ({ name: value, ...option }))
  if (question.type === 'score') return question.levels.map(({ label, ...level }) => ({ name: label, ...level }))
  return []
}

function Questions({ decider }: { decider: Decider }) {
  const { id, questions, escalate_below, version, updated_at } = decider
  return (
    <Stack gap="lg">
      <Section title={strings.deciders.decider}>
        <Facts
          facts={[
            [texts.answeredBy, <AnsweredBy key="by" {...decider} />],
            [texts.escalate, escalate_below?.toLocaleString()],
            [strings.version, version],
            [strings.updated, <When key="updated" at={updated_at} />],
          ]}
        />
        <IdLine id={id} />
      </Section>
      {questions.map(question => (
        <Section key={question.name} title={visible(question.name)}>
          <Text>{visible(question.instructions)}</Text>
          <Text size="sm" c="dimmed">
            {texts.types[question.type]}
          </Text>
          {question.type !== 'predicate' && (
            <List size="sm">
              {optionsOf(question).map(option => (
                <List.Item key={option.name}>
                  <b>{visible(option.name)}</b> {visible(option.description)}
                </List.Item>
              ))}
            </List>
          )}
        </Section>
      ))}
    </Stack>
  )
}

const TEXT_INPUT = { properties: { input: { type: 'string', maxLength: 65_536, title: texts.input } } }
const JSON_INPUT = { properties: { input: { title: texts.input, description: texts.inputJsonHelp } } }

/** Makes a decision of an input, and shows its answers as soon as they are there. */
function Trial({ decider }: { decider: Decider }) {
  const isAllowed = usePermissions(decider.project_id)
  const mayRead = isAllowed(getDecision) === true
  const [mode, setMode] = useState<'text' | 'json'>('text')
  const decide = useAction<Values, Decision>({
    // Without the permission to read it later, the answer to the request is the decision.
    run: async ({ input }) => createDecision(api, { decider_id: decider.id, input: input as string, wait: !mayRead }),
    stale: [['decisions']],
  })
  const schema = mode === 'text' ? TEXT_INPUT : JSON_INPUT
  return (
    <Stack gap="lg">
      <Section title={texts.try}>
        <Text c="dimmed">{texts.tryText}</Text>
        <SegmentedControl
          aria-label={texts.inputAs}
          value={mode}
          onChange={next => setMode(next as typeof mode)}
          data={[
            { value: 'text', label: texts.inputText },
            { value: 'json', label: texts.inputJson },
          ]}
          w="fit-content"
        />
        <DraftScope value={mode}>
          <SchemaForm
            key={mode}
            schema={{ ...schema, required: ['input'] }}
            submitLabel={texts.decide}
            isPending={decide.isPending}
            error={decide.error}
            onSubmit={values => decide.mutate(values)}
          />
        </DraftScope>
      </Section>
      {decide.data && <Made key={decide.data.id} first={decide.data} decider={decider} mayRead={mayRead} />}
    </Stack>
  )
}

/** A decision that was requested, read until it is settled. */
function Made({ first, decider, mayRead }: { first: Decision; decider: Decider; mayRead: boolean }) {
  const { data: decision = first } = useQuery<Decision>({
    queryKey: ['decision', first.id],
    queryFn: async ({ signal }) => getDecision(api, { decision_id: first.id }, { signal }),
    enabled: mayRead,
    refetchInterval: query => (query.state.data && isSettled(query.state.data) ? false : every(BUSY_MS / 2)(query)),
  })
  return (
    <Section title={texts.answers}>
      <Outcome decision={decision} questions={decider.questions} />
      {mayRead && (
        <Group>
          <Anchor
            component={Link}
            to={`/p/${decider.project_id}/deciders/${decider.id}/decisions/${first.id}`}
            underline="always"
          >
            {texts.openDecision}
          </Anchor>
        </Group>
      )}
    </Section>
  )
}

const isSettled = ({ status }: Decision): boolean => status === 'completed' || status === 'failed'
