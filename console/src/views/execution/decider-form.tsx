import fields from 'fields:createDecider'
import { Select, Stack, Textarea, TextInput } from '@mantine/core'
import type { Decider, DeciderInput, DeciderQuestion } from '@muster/client'
import { createDecider, getDecider, updateDecider } from '@muster/client/operations'
import { api } from '#api.ts'
import { useAgents, useTools } from '#choices.ts'
import { type ChangeEntry, EntryList } from '#components/entries.tsx'
import type { Read } from '#components/guarded-save.tsx'
import { RecordForm, readTagged } from '#components/record-form.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.deciders

const TYPES = ['predicate', 'choice', 'score'] as const
const MAX_QUESTIONS = 20
/** The smallest and the largest number of options and of levels. */
const OPTIONS = [2, 20] as const

type Option = { value: string; description: string }
type Level = { label: string; description: string }
/** A question while it is edited: its options and levels remain where its type changes. */
type Question = {
  type: DeciderQuestion['type']
  name: string
  instructions: string
  choices?: Option[]
  levels?: Level[]
}

const blankOption = (): Option => ({ value: '', description: '' })
const blankLevel = (): Level => ({ label: '', description: '' })
const two = <Entry,>(blank: () => Entry): Entry[] => [blank(), blank()]

const properties = fields.properties ?? {}
const schema = {
  properties: {
    ...properties,
    agent_id: { ...properties.agent_id, title: texts.agent, description: texts.agentHelp },
    tool_id: { ...properties.tool_id, title: texts.tool, description: texts.toolHelp },
    escalate_below: { ...properties.escalate_below, title: texts.escalate, description: texts.escalateHelp },
    version_label: { ...properties.version_label, title: texts.label, description: '' },
  },
  required: ['name'],
}

/** Returns the questions as they are sent: each with the fields of its type. */
const packed = (questions: Question[]) =>
  questions.map(({ type, name, instructions, choices = two(blankOption), levels = two(blankLevel) }) => ({
    type,
    name,
    instructions,
    ...(type === 'choice' ? { choices } : {}),
    ...(type === 'score' ? { levels } : {}),
  }))

export const readDecider = (id: string, signal?: AbortSignal): Promise<Read<Decider>> =>
  readTagged(getDecider, { decider_id: id }, signal)

/** Creates or changes a decider: its questions by a form, or as JSON. */
export function DeciderForm({
  first,
  onDone,
  onCancel,
}: {
  first?: Read<Decider>
  onDone: (id: string) => void
  onCancel: () => void
}) {
  const projectId = useProjectId()
  const agents = useAgents(projectId)
  const tools = useTools(projectId)
  const callable = tools.rows?.filter(({ type }) => type === 'http' || type === 'pipeline').map(({ id }) => id)
  return (
    <RecordForm<Decider, Question[]>
      first={first}
      read={readDecider}
      write={async (change, options, id) =>
        id
          ? updateDecider(api, { ...change, decider_id: id }, options)
          : createDecider(api, { ...change, project_id: projectId } as DeciderInput)
      }
      stale={[['deciders', projectId], ['decider']]}
      schema={schema}
      only={['name', 'description', 'agent_id', 'tool_id', 'escalate_below', 'version_label']}
      options={{
        agent_id: agents.choices,
        tool_id: tools.choices?.filter(({ value }) => callable?.includes(value)),
      }}
      own={{
        name: 'questions',
        start: [{ type: 'predicate', name: '', instructions: '' }],
        packed,
        input: (questions, onChange) => (
          <EntryList
            label={texts.questions}
            one={texts.question}
            entries={questions}
            onChange={onChange}
            blank={(): Question => ({ type: 'predicate', name: '', instructions: '' })}
            limits={[1, MAX_QUESTIONS]}
          >
            {(question, change) => <QuestionFields question={question} change={change} />}
          </EntryList>
        ),
      }}
      onDone={onDone}
      onCancel={onCancel}
    />
  )
}

function QuestionFields({ question, change }: { question: Question; change: ChangeEntry<Question> }) {
  const { type, name, instructions, choices = two(blankOption), levels = two(blankLevel) } = question
  return (
    <Stack gap="sm">
      <TextInput
        label={texts.questionName}
        description={texts.questionNameHelp}
        value={name}
        onChange={event => change({ name: event.currentTarget.value })}
        required
      />
      <Textarea
        label={texts.question}
        value={instructions}
        onChange={event => change({ instructions: event.currentTarget.value })}
        autosize
        minRows={2}
        maxRows={12}
        required
      />
      <Select
        label={texts.type}
        data={TYPES.map(value => ({ value, label: texts.types[value] }))}
        value={type}
        onChange={next => change({ type: TYPES.find(each => each === next) })}
        allowDeselect={false}
      />
      {type === 'choice' && (
        <EntryList
          label={texts.choices}
          one={texts.choice}
          entries={choices}
          onChange={next => change({ choices: next })}
          blank={blankOption}
          limits={OPTIONS}
          isCompact
        >
          {(option, changeOption) => (
            <Meaning
              title={texts.value}
              name={option.value}
              description={option.description}
              onName={value => changeOption({ value })}
              onDescription={description => changeOption({ description })}
            />
          )}
        </EntryList>
      )}
      {type === 'score' && (
        <EntryList
          label={texts.levels}
          one={texts.level}
          entries={levels}
          onChange={next => change({ levels: next })}
          blank={blankLevel}
          limits={OPTIONS}
          isCompact
        >
          {(level, changeLevel) => (
            <Meaning
              title={strings.name}
              name={level.label}
              description={level.description}
              onName={label => changeLevel({ label })}
              onDescription={description => changeLevel({ description })}
            />
          )}
        </EntryList>
      )}
    </Stack>
  )
}

/** The name of an option or a level, with its meaning. */
function Meaning({
  title,
  name,
  description,
  onName,
  onDescription,
}: {
  title: string
  name: string
  description: string
  onName: (name: string) => void
  onDescription: (description: string) => void
}) {
  return (
    <>
      <TextInput
        aria-label={title}
        placeholder={title}
        value={name}
        onChange={event => onName(event.currentTarget.value)}
        flex="1 1 120px"
      />
      <TextInput
        aria-label={texts.meaning}
        placeholder={texts.meaning}
        value={description}
        onChange={event => onDescription(event.currentTarget.value)}
        flex="2 1 200px"
      />
    </>
  )
}
