import createFields from 'fields:createQuota'
import thresholdFields from 'fields:createUsageThreshold'
import patchFields from 'fields:updateQuota'
import { Badge, Group, Stack, Text } from '@mantine/core'
import type { Quota, QuotaUsage, UsageThreshold } from '@muster/client'
import {
  createQuota,
  createUsageThreshold,
  deleteQuota,
  deleteUsageThreshold,
  getQuotaUsage,
  listQuotas,
  listUsageThresholds,
  updateQuota,
} from '@muster/client/operations'
import { IconBell, IconGauge, IconPlus } from '@tabler/icons-react'
import { useQuery } from '@tanstack/react-query'
import { api, every } from '#api.ts'
import { ActionButton, FormButton, RowActions, useAction } from '#components/actions.tsx'
import { type Column, ListView, type PageOf, useList } from '#components/list.tsx'
import { Meter } from '#components/meter.tsx'
import { Section } from '#components/record.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { Loaded, Notice } from '#components/states.tsx'
import { costText, sizeText, visible, When } from '#components/text.tsx'
import { type Permissions, usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const POLL_MS = 60_000
const texts = strings.quotas

const choices = (labels: Record<string, string>) => Object.entries(labels).map(([value, label]) => ({ value, label }))
const OPTIONS = {
  scope: choices(texts.scopes),
  metric: choices(texts.metrics),
  window: choices(texts.windows),
  mode: choices(texts.modes),
}

/** Returns an amount of a metric for people. */
const amountText = (metric: Quota['metric'] | UsageThreshold['metric'], amount: number): string => {
  if (metric === 'cost_usd') return costText(amount)
  if (metric === 'storage_bytes') return sizeText(amount)
  return amount.toLocaleString()
}

type Row = Quota & { usage: QuotaUsage }

const quotaColumns = (isAllowed: Permissions, key: unknown[]): Column<Row>[] => [
  {
    title: texts.limit,
    isWide: true,
    cell: ({ metric, scope, scope_ref, window, limit, usage: { observed_value } }) => (
      <>
        <Text fw={600} size="sm">
          {texts.of(texts.metrics[metric], texts.windows[window])}
        </Text>
        <Text size="sm" c="dimmed">
          {texts.scopes[scope]} {scope_ref && <span className="mono">{visible(scope_ref)}</span>}
        </Text>
        {observed_value !== null && <Meter used={observed_value} limit={limit} label={texts.metrics[metric]} />}
      </>
    ),
  },
  {
    title: texts.used,
    cell: ({ metric, limit, usage: { observed_value, resets_at } }) => (
      <>
        {observed_value === null
          ? texts.unknown
          : texts.usedOf(amountText(metric, observed_value), amountText(metric, limit))}
        {resets_at && (
          <Text size="sm" c="dimmed" component="div">
            {texts.resets} <When at={resets_at} />
          </Text>
        )}
      </>
    ),
  },
  { title: texts.mode, cell: ({ mode }) => <Badge variant="default">{texts.modes[mode]}</Badge> },
  {
    title: strings.actions,
    cell: quota => (
      <RowActions>
        {isAllowed(updateQuota) && (
          <FormButton
            label={strings.edit}
            size="xs"
            variant="default"
            form={close => <QuotaForm quota={quota} onDone={close} />}
          />
        )}
        {isAllowed(deleteQuota) && (
          <ActionButton
            label={strings.remove}
            color="red"
            question={texts.deleteText}
            run={async () => deleteQuota(api, { quota_id: quota.id })}
            stale={[key, ['overview']]}
          />
        )}
      </RowActions>
    ),
  },
]

/** Limits of a project with their usage, and thresholds that report usage. */
export function Quotas() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const key = ['quotas', projectId]
  const list = useList<Row>(
    key,
    async (_, bounds, signal): Promise<PageOf<Row>> => {
      const { data, total } = await listQuotas(api, { project_id: projectId, ...bounds }, { signal }).page()
      const usage = await Promise.all(data.map(({ id }) => getQuotaUsage(api, { quota_id: id }, { signal })))
      return { data: data.map((quota, index) => ({ ...quota, usage: usage[index] })), total }
    },
    { pollMs: POLL_MS },
  )
  const columns = quotaColumns(isAllowed, key)
  const create = isAllowed(createQuota) && (
    <FormButton
      label={texts.create}
      leftSection={<IconPlus size={16} />}
      form={close => <QuotaForm onDone={close} />}
    />
  )
  return (
    <Stack gap="lg">
      {create && <Group>{create}</Group>}
      <ListView
        label={texts.title}
        list={list}
        operation={listQuotas}
        columns={columns}
        empty={
          <Notice icon={<IconGauge />} title={texts.empty} action={create} color="indigo">
            {texts.emptyText}
          </Notice>
        }
      />
      {isAllowed(listUsageThresholds) && <Thresholds projectId={projectId} />}
    </Stack>
  )
}

function QuotaForm({ quota, onDone }: { quota?: Row; onDone: () => void }) {
  const projectId = useProjectId()
  const save = useAction({
    run: async (values: Values) =>
      quota
        ? updateQuota(api, { quota_id: quota.id, ...values })
        : createQuota(api, { project_id: projectId, ...values } as unknown as Parameters<typeof createQuota>[1]),
    stale: [['quotas', projectId], ['overview']],
    message: texts.saved,
    onDone,
  })
  return (
    <SchemaForm
      schema={quota ? patchFields : createFields}
      initial={quota as Values | undefined}
      start={{ scope: 'project', metric: 'cost_usd', window: 'calendar_month' }}
      omit={['project_id']}
      options={OPTIONS}
      submitLabel={quota ? strings.save : strings.create}
      isPending={save.isPending}
      error={save.error}
      onSubmit={values => save.mutate(values)}
      onCancel={onDone}
    />
  )
}

function Thresholds({ projectId }: { projectId: string }) {
  const isAllowed = usePermissions(projectId)
  const key = ['thresholds', projectId]
  const thresholds = useQuery({
    queryKey: key,
    queryFn: async ({ signal }) =>
      (await listUsageThresholds(api, { project_id: projectId, limit: 100 }, { signal }).page()).data,
    refetchInterval: every(POLL_MS),
  })
  const create = isAllowed(createUsageThreshold) && (
    <FormButton
      label={texts.createThreshold}
      size="xs"
      variant="default"
      form={close => <ThresholdForm projectId={projectId} onDone={close} />}
    />
  )
  return (
    <Section title={texts.thresholds} actions={create}>
      <Loaded query={thresholds} operation={listUsageThresholds} rows={1}>
        {rows =>
          rows.length === 0 ? (
            <Group gap="xs">
              <IconBell size={20} aria-hidden />
              <Text c="dimmed">{texts.noThresholds}</Text>
            </Group>
          ) : (
            <Stack gap="sm">
              {rows.map(({ id, metric, window, threshold, last_fired_at }) => (
                <Group key={id} justify="space-between" gap="sm">
                  <Text size="sm" component="div">
                    {texts.reports(
                      texts.of(texts.metrics[metric], texts.windows[window]),
                      amountText(metric, threshold),
                    )}
                    {last_fired_at && (
                      <Text size="sm" c="dimmed" component="div">
                        {texts.fired} <When at={last_fired_at} />
                      </Text>
                    )}
                  </Text>
                  {isAllowed(deleteUsageThreshold) && (
                    <ActionButton
                      label={strings.remove}
                      color="red"
                      question={texts.deleteThreshold}
                      run={async () => deleteUsageThreshold(api, { threshold_id: id })}
                      stale={[key]}
                    />
                  )}
                </Group>
              ))}
            </Stack>
          )
        }
      </Loaded>
    </Section>
  )
}

function ThresholdForm({ projectId, onDone }: { projectId: string; onDone: () => void }) {
  const save = useAction({
    run: async (values: Values) =>
      createUsageThreshold(api, {
        project_id: projectId,
        ...values,
      } as unknown as Parameters<typeof createUsageThreshold>[1]),
    stale: [['thresholds', projectId]],
    onDone,
  })
  return (
    <SchemaForm
      schema={thresholdFields}
      omit={['project_id']}
      options={{
        metric: OPTIONS.metric.filter(({ value }) => ['cost_usd', 'tokens'].includes(value)),
        window: OPTIONS.window.filter(({ value }) => ['calendar_month', 'rolling_24h'].includes(value)),
      }}
      start={{ metric: 'cost_usd', window: 'calendar_month' }}
      submitLabel={strings.create}
      isPending={save.isPending}
      error={save.error}
      onSubmit={values => save.mutate(values)}
      onCancel={onDone}
    />
  )
}
