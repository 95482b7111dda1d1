import fields from 'fields:createModelRoute'
import { NumberInput, Select, SimpleGrid, TextInput } from '@mantine/core'
import type { ModelRoute, ModelRouteInput } from '@muster/client'
import { createModelRoute, getModelRoute, updateModelRoute } from '@muster/client/operations'
import { api } from '#api.ts'
import { type Choice, useProviders } from '#choices.ts'
import { type ChangeEntry, EntryList } from '#components/entries.tsx'
import type { Read } from '#components/guarded-save.tsx'
import { RecordForm, readTagged } from '#components/record-form.tsx'
import { visible } from '#components/text.tsx'
import { useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.routes

const MAX_TARGETS = 10

type Target = ModelRouteInput['targets'][number]

const properties = fields.properties ?? {}
const schema = {
  properties: {
    name: { ...properties.name, description: '' },
    retry_on: {
      ...properties.retry_on,
      // A list to choose from by the names of the classes.
      items: { type: 'string' },
      title: texts.retryOn,
      description: texts.retryOnHelp,
    },
    failure_threshold: { ...properties.failure_threshold, title: texts.threshold, description: texts.thresholdHelp },
    cooldown_seconds: { ...properties.cooldown_seconds, title: texts.cooldown, description: texts.cooldownHelp },
  },
  required: ['name'],
}

export const readRoute = (id: string, signal?: AbortSignal): Promise<Read<ModelRoute>> =>
  readTagged(getModelRoute, { model_route_id: id }, signal)

/** Creates or changes a model route, with its targets in order. */
export function ModelRouteForm({
  first,
  onDone,
  onCancel,
}: {
  first?: Read<ModelRoute>
  onDone: (id: string) => void
  onCancel: () => void
}) {
  const projectId = useProjectId()
  const { choices, rows } = useProviders(projectId)
  return (
    <RecordForm<ModelRoute, Target[]>
      first={first}
      read={readRoute}
      write={async (change, options, id) =>
        id
          ? updateModelRoute(api, { ...change, model_route_id: id }, options)
          : createModelRoute(api, { ...change, project_id: projectId } as ModelRouteInput)
      }
      stale={[['model-routes', projectId], ['model-route']]}
      schema={schema}
      only={Object.keys(schema.properties)}
      options={{ retry_on: Object.entries(texts.classes).map(([value, label]) => ({ value, label })) }}
      own={{
        name: 'targets',
        start: [{ ai_provider_id: '', model: '' }],
        input: (targets, onChange) => (
          <EntryList
            label={texts.targets}
            description={texts.targetsHelp}
            one={texts.target}
            entries={targets}
            onChange={onChange}
            blank={(): Target => ({ ai_provider_id: '', model: '' })}
            limits={[1, MAX_TARGETS]}
          >
            {(target, change) => (
              <TargetFields
                target={target}
                change={change}
                providers={choices}
                defaultModel={rows?.find(({ id }) => id === target.ai_provider_id)?.default_model}
              />
            )}
          </EntryList>
        ),
      }}
      onDone={onDone}
      onCancel={onCancel}
    />
  )
}

function TargetFields({
  target: { ai_provider_id, model, timeout_seconds, max_retries },
  change,
  providers,
  defaultModel,
}: {
  target: Target
  change: ChangeEntry<Target>
  providers?: Choice[]
  defaultModel?: string
}) {
  const numberOf = (value: string | number) => (value === '' ? undefined : Number(value))
  return (
    <SimpleGrid cols={{ base: 1, sm: 2 }}>
      {providers ? (
        <Select
          label={texts.provider}
          data={providers}
          value={ai_provider_id || null}
          onChange={next => change({ ai_provider_id: next ?? '' })}
          allowDeselect={false}
          searchable
          openOnFocus={false}
          nothingFoundMessage={strings.nothingFound}
          required
        />
      ) : (
        <TextInput
          label={texts.provider}
          value={ai_provider_id}
          onChange={event => change({ ai_provider_id: event.currentTarget.value })}
          required
        />
      )}
      <TextInput
        label={texts.model}
        placeholder={defaultModel && visible(defaultModel)}
        value={model}
        onChange={event => change({ model: event.currentTarget.value })}
        required
      />
      <NumberInput
        label={texts.timeout}
        value={timeout_seconds ?? ''}
        onChange={value => change({ timeout_seconds: numberOf(value) })}
        min={1}
        allowDecimal={false}
        hideControls
      />
      <NumberInput
        label={texts.retries}
        value={max_retries ?? ''}
        onChange={value => change({ max_retries: numberOf(value) })}
        min={0}
        allowDecimal={false}
        hideControls
      />
    </SimpleGrid>
  )
}
