import fireFields from 'fields:fireTrigger'
import rotateFields from 'fields:rotateTriggerSecret'
import { Group, Stack, Text } from '@mantine/core'
import type { Trigger, TriggerFiring } from '@muster/client'
import {
  deleteTrigger,
  fireTrigger,
  getTrigger,
  listTriggerFirings,
  rotateTriggerSecret,
  updateTrigger,
} from '@muster/client/operations'
import { IconEdit, IconPlayerPlay } from '@tabler/icons-react'
import { useNavigate } from '@tanstack/react-router'
import { useIds } from '#address.ts'
import { api, every, POLL_MS } from '#api.ts'
import { ActionButton, FormButton, useAction } from '#components/actions.tsx'
import { ChoiceField, type Column, ListView, RecordLink, useList } from '#components/list.tsx'
import { Page } from '#components/page.tsx'
import { AddressTabs, Facts, IdLine, LabelledValues, Section } from '#components/record.tsx'
import { RecordPage } from '#components/record-page.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { SecretOnce } from '#components/secret.tsx'
import { Notice } from '#components/states.tsx'
import { StatusBadge, statusText } from '#components/status.tsx'
import { CopyText, visible, When } from '#components/text.tsx'
import { usePermissions } from '#projects.ts'
import * as strings from '#strings.ts'
import { TriggerForm } from './trigger-form.tsx'
import { firedBy } from './triggers.tsx'

const texts = strings.triggers

const STATUSES = ['pending', 'running', 'succeeded', 'failed', 'skipped'] as const
const SOURCES = ['manual', 'webhook', 'schedule', 'event'] as const

/** A trigger: its firings and its record. */
export function TriggerView() {
  const { triggerId } = useIds()
  return (
    <RecordPage
      queryKey={['trigger', triggerId]}
      get={getTrigger}
      ids={{ trigger_id: triggerId }}
      refetchInterval={every(POLL_MS)}
    >
      {record => <TriggerPage trigger={record} />}
    </RecordPage>
  )
}

function TriggerPage({ trigger }: { trigger: Trigger }) {
  const { id, project_id, name, description, active, next_fire_at } = trigger
  const isAllowed = usePermissions(project_id)
  const stale = [['trigger', id], ['triggers'], ['firings', project_id]]
  const actions = (
    <>
      {isAllowed(fireTrigger) && active && (
        <FormButton
          label={texts.fire}
          leftSection={<IconPlayerPlay size={16} />}
          form={close => <FireForm trigger={trigger} onDone={close} />}
        />
      )}
      {isAllowed(updateTrigger) && (
        <>
          <ActionButton
            size="sm"
            label={active ? texts.disable : texts.enable}
            question={active && texts.disableText}
            run={async () => updateTrigger(api, { trigger_id: id, active: !active })}
            stale={stale}
          />
          <FormButton
            label={strings.edit}
            variant="default"
            leftSection={<IconEdit size={16} />}
            form={close => <TriggerForm projectId={project_id} trigger={trigger} onDone={() => close()} />}
          />
        </>
      )}
    </>
  )
  return (
    <Page
      title={name}
      intro={
        <Group gap="sm">
          <StatusBadge status={active ? 'active' : 'inactive'} />
          <Text span>
            {texts.types[trigger.type]} <span className="mono">{visible(firedBy(trigger))}</span>
          </Text>
          {next_fire_at && (
            <Text span>
              {texts.nextFiring} <When at={next_fire_at} />
            </Text>
          )}
        </Group>
      }
      actions={actions}
    >
      {description && <Text>{visible(description)}</Text>}
      <AddressTabs
        tabs={[
          { value: 'firings', title: texts.firings, content: () => <Firings trigger={trigger} /> },
          { value: 'record', title: strings.record, content: () => <Record trigger={trigger} /> },
        ]}
      />
    </Page>
  )
}

function FireForm({ trigger: { id, project_id, input }, onDone }: { trigger: Trigger; onDone: () => void }) {
  const fire = useAction<Values>({
    run: async values => fireTrigger(api, { ...values, trigger_id: id, wait: false }),
    stale: [['firings', project_id]],
    message: texts.fired,
    onDone,
  })
  return (
    <Stack gap="md">
      <LabelledValues values={[[texts.defaultInput, input]]} />
      <SchemaForm
        schema={fireFields}
        only={['input']}
        submitLabel={texts.fire}
        isPending={fire.isPending}
        error={fire.error}
        onSubmit={values => fire.mutate(values)}
        onCancel={onDone}
      />
    </Stack>
  )
}

const triggerFiringColumns = (project_id: string, id: string): Column<TriggerFiring>[] => [
  {
    title: texts.firing,
    isWide: true,
    cell: ({ id: firingId, source, error }) => (
      <>
        <RecordLink to={`/p/${project_id}/triggers/${id}/firings/${firingId}`}>{texts.sources[source]}</RecordLink>
        {error && (
          <Text size="sm" c="dimmed" lineClamp={2}>
            {visible(error.message)}
          </Text>
        )}
      </>
    ),
  },
  { title: strings.state, cell: ({ status }) => <StatusBadge status={status} /> },
  { title: strings.started, cell: ({ result }) => <Started result={result} projectId={project_id} /> },
  { title: texts.time, cell: ({ created_at }) => <When at={created_at} /> },
]

function Firings({ trigger: { id, project_id } }: { trigger: Trigger }) {
  const list = useList<TriggerFiring>(
    ['firings', project_id, id],
    async ({ status, source }, bounds, signal) => {
      const statuses = STATUSES.filter(each => each === status)
      const sources = SOURCES.filter(each => each === source)
      return listTriggerFirings(
        api,
        {
          trigger_id: id,
          status: statuses.length > 0 ? statuses : undefined,
          source: sources.length > 0 ? sources : undefined,
          ...bounds,
        },
        { signal },
      ).page()
    },
    { pollMs: POLL_MS },
  )
  const columns = triggerFiringColumns(project_id, id)
  return (
    <Stack gap="md">
      <ListView
        label={texts.firings}
        list={list}
        operation={listTriggerFirings}
        columns={columns}
        fields={
          <>
            <ChoiceField
              name="status"
              label={strings.state}
              choices={STATUSES.map(value => ({ value, label: statusText(value) }))}
            />
            <ChoiceField
              name="source"
              label={texts.source}
              choices={SOURCES.map(value => ({ value, label: texts.sources[value] }))}
            />
          </>
        }
        empty={
          <Notice icon={<IconPlayerPlay />} title={texts.noFirings}>
            {texts.noFiringsText}
          </Notice>
        }
      />
    </Stack>
  )
}

/** Views of what triggers start. */
const VIEWS: Partial<Record<Trigger['target_type'], string>> = {
  orchestration: 'runs',
  agent: 'traces',
  formation: 'formations',
}

/** What a firing started. */
export function Started({ result, projectId }: { result: TriggerFiring['result']; projectId: string }) {
  if (!result) return <>{strings.none}</>
  const { target_type, result_id } = result
  const view = VIEWS[target_type]
  return (
    <>
      <Text inherit>{texts.targets[target_type]}</Text>
      {result_id && view && (
        <RecordLink to={`/p/${projectId}/${view}/${result_id}`}>
          <Text span size="sm" className="mono">
            {result_id}
          </Text>
        </RecordLink>
      )}
      {result_id && !view && (
        <Text size="sm" className="mono">
          {result_id}
        </Text>
      )}
    </>
  )
}

function Record({ trigger }: { trigger: Trigger }) {
  const { id, project_id, name, type, target_type, target_id, action, hook_url, policy_id, run_as } = trigger
  const navigate = useNavigate()
  const isAllowed = usePermissions(project_id)
  const mono = (value: string | null) =>
    value && (
      <span key={value} className="mono">
        {visible(value)}
      </span>
    )
  const values: [string, unknown][] = [
    [texts.input, trigger.input],
    [texts.mapping, trigger.input_mapping],
    [texts.filter, trigger.event_filter],
  ]
  return (
    <Section
      title={strings.record}
      actions={
        <>
          {type === 'webhook' && isAllowed(rotateTriggerSecret) && (
            <FormButton
              label={texts.rotate}
              size="xs"
              variant="default"
              form={close => <RotateForm id={id} onDone={close} />}
            />
          )}
          {isAllowed(deleteTrigger) && (
            <ActionButton
              label={strings.remove}
              color="red"
              question={texts.deleteText(visible(name))}
              run={async () => {
                await deleteTrigger(api, { trigger_id: id })
                await navigate({ to: `/p/${project_id}/triggers`, replace: true })
              }}
              stale={[['triggers']]}
            />
          )}
        </>
      }
    >
      <Facts
        facts={[
          [texts.type, texts.types[type]],
          [texts.starts, texts.targets[target_type]],
          [texts.target, mono(target_id)],
          [texts.action, mono(action)],
          [texts.firedBy, mono(firedBy(trigger))],
          [texts.overlap, trigger.overlap_policy],
          [texts.misfire, trigger.misfire_policy],
          [texts.scheme, trigger.signature_scheme],
          [texts.policy, mono(policy_id)],
          [texts.runAs, mono(run_as.id)],
          [strings.created, <When key="created" at={trigger.created_at} />],
          [strings.updated, <When key="updated" at={trigger.updated_at} />],
        ]}
      />
      {hook_url && (
        <Stack gap={2}>
          <Text size="sm" c="dimmed">
            {texts.hookUrl}
          </Text>
          <Text component="div" className="mono">
            {hook_url} <CopyText text={hook_url} />
          </Text>
        </Stack>
      )}
      <LabelledValues values={values} />
      <IdLine id={id} />
    </Section>
  )
}

function RotateForm({ id, onDone }: { id: string; onDone: () => void }) {
  const rotate = useAction<Values, { secret?: string }>({
    run: async values => rotateTriggerSecret(api, { ...values, trigger_id: id }),
    stale: [['trigger', id]],
  })
  if (rotate.data?.secret) return <SecretOnce secret={rotate.data.secret} notice={texts.secretOnce} onDone={onDone} />
  return (
    <SchemaForm
      schema={rotateFields}
      submitLabel={texts.rotate}
      isPending={rotate.isPending}
      error={rotate.error}
      onSubmit={values => rotate.mutate(values)}
      onCancel={onDone}
    />
  )
}
