import deploymentFields from 'fields:putPrices.prices'
import projectFields from 'fields:putProjectPrices.prices'
import { Badge, Group, SegmentedControl, Stack, Text } from '@mantine/core'
import type { Price } from '@muster/client'
import {
  deletePrice,
  deleteProjectPrice,
  listPrices,
  listProjectPrices,
  putPrices,
  putProjectPrices,
} from '@muster/client/operations'
import { IconPlus, IconTags } from '@tabler/icons-react'
import { api } from '#api.ts'
import { ActionButton, FormButton, useAction } from '#components/actions.tsx'
import { useFilters } from '#components/filters.ts'
import { type Column, ListView, SearchField, useList } from '#components/list.tsx'
import { SchemaForm, type Values } from '#components/schema-form.tsx'
import { Notice } from '#components/states.tsx'
import { visible, When } from '#components/text.tsx'
import { usePermissions, useProjectId } from '#projects.ts'
import * as strings from '#strings.ts'

const texts = strings.prices
const FORM_FIELDS = [
  'provider',
  'model',
  'component',
  'unit',
  'unit_price',
  'tier',
  'above_tokens',
  'effective_from',
  'meter_type',
  'ai_provider_id',
  'resource',
]
const PRICE = new Intl.NumberFormat(undefined, { style: 'currency', currency: 'USD', maximumFractionDigits: 9 })

/** Prices of the project, which take precedence, and of the deployment. A price never changes, a later one follows. */
export function Prices() {
  const projectId = useProjectId()
  const isAllowed = usePermissions(projectId)
  const { filters, setFilters } = useFilters()
  const isGlobal = filters.of === 'deployment' && isAllowed(listPrices) === true
  const mayManage = isAllowed(isGlobal ? putPrices : putProjectPrices)
  const key = ['prices', isGlobal ? null : projectId]
  const list = useList<Price>(key, async ({ model }, bounds, signal) =>
    isGlobal
      ? listPrices(api, { model, ...bounds }, { signal }).page()
      : listProjectPrices(api, { project_id: projectId, model, ...bounds }, { signal }).page(),
  )
  const columns: Column<Price>[] = [
    {
      title: texts.what,
      isWide: true,
      cell: ({ provider, model, component, resource, tier, above_tokens }) => (
        <>
          <Text fw={600} size="sm">
            {visible(provider)} {visible(model)}
          </Text>
          <Text size="sm" c="dimmed">
            {visible(component)} {resource && visible(resource)}
          </Text>
          {(tier !== null || above_tokens !== null) && (
            <Group gap={6}>
              {tier !== null && <Badge variant="default">{visible(texts.tier(tier))}</Badge>}
              {above_tokens !== null && <Badge variant="default">{texts.above(above_tokens.toLocaleString())}</Badge>}
            </Group>
          )}
        </>
      ),
    },
    {
      title: texts.price,
      cell: ({ unit_price, unit }) => (
        <>
          {PRICE.format(unit_price)}
          <Text size="sm" c="dimmed">
            {visible(unit)}
          </Text>
        </>
      ),
    },
    {
      title: texts.from,
      cell: ({ effective_from }) => (
        <Group gap={6}>
          <When at={effective_from} />
          {isFuture({ effective_from }) && <Badge variant="light">{texts.future}</Badge>}
        </Group>
      ),
    },
    {
      title: strings.actions,
      cell: price =>
        mayManage && (
          <Group gap={6}>
            {price.quantity === null && (
              <FormButton
                label={texts.change}
                size="xs"
                variant="default"
                form={close => <PriceForm start={successorOf(price)} isGlobal={isGlobal} onDone={close} />}
              />
            )}
            {isFuture(price) && (
              <ActionButton
                label={strings.remove}
                color="red"
                question={texts.deleteText}
                run={async () =>
                  isGlobal
                    ? deletePrice(api, { price_id: price.id })
                    : deleteProjectPrice(api, { project_id: projectId, price_id: price.id })
                }
                stale={[key]}
              />
            )}
          </Group>
        ),
    },
  ]
  const create = mayManage && (
    <FormButton
      label={texts.create}
      leftSection={<IconPlus size={16} />}
      form={close => <PriceForm isGlobal={isGlobal} onDone={close} />}
    />
  )
  return (
    <Stack gap="lg">
      <Group justify="space-between" gap="sm">
        {create}
        {isAllowed(listPrices) && (
          <SegmentedControl
            aria-label={texts.of}
            value={isGlobal ? 'deployment' : 'project'}
            onChange={of => setFilters({ of: of === 'project' ? undefined : of })}
            data={[
              { value: 'project', label: texts.project },
              { value: 'deployment', label: texts.deployment },
            ]}
          />
        )}
      </Group>
      <ListView
        label={texts.title}
        list={list}
        operation={listProjectPrices}
        columns={columns}
        choices={['of']}
        fields={<SearchField name="model" label={texts.model} />}
        empty={
          <Notice icon={<IconTags />} title={isGlobal ? texts.noPrices : texts.empty} action={create} color="indigo">
            {isGlobal ? texts.noPricesText : texts.emptyText}
          </Notice>
        }
      />
    </Stack>
  )
}

const isFuture = ({ effective_from }: Pick<Price, 'effective_from'>) => Date.parse(effective_from) > Date.now()

/** Time until a price that follows one in effect starts: long enough to fill in the form. */
const SUCCESSOR_MS = 5 * 60_000

/** The fields of a price that follows another one, or replaces a price that is not in effect yet. */
const successorOf = ({ id, project_id, created_at, effective_until, quantity, ...fields }: Price): Values => ({
  ...fields,
  effective_from: isFuture(fields) ? fields.effective_from : new Date(Date.now() + SUCCESSOR_MS).toISOString(),
})

const minuteOf = (at: unknown): number => Math.floor(Date.parse(String(at)) / 60_000)

/** Adds a price to a project, or to the deployment; one with the start of a future price replaces it. */
export function PriceForm({
  start,
  isGlobal = false,
  onDone,
}: {
  start?: Values
  isGlobal?: boolean
  onDone: () => void
}) {
  const projectId = useProjectId()
  const save = useAction({
    run: async (entered: Values) => {
      // The form has times to the minute.
      const isUnchanged = minuteOf(entered.effective_from) === minuteOf(start?.effective_from)
      const prices = [isUnchanged ? { ...entered, effective_from: start?.effective_from } : entered]
      return isGlobal
        ? putPrices(api, { prices } as unknown as Parameters<typeof putPrices>[1])
        : putProjectPrices(api, { project_id: projectId, prices } as unknown as Parameters<typeof putProjectPrices>[1])
    },
    stale: [['prices'], ['usage', projectId]],
    message: texts.saved,
    onDone,
  })
  return (
    <SchemaForm
      schema={isGlobal ? deploymentFields : projectFields}
      only={FORM_FIELDS}
      start={{ effective_from: new Date().toISOString(), ...start }}
      submitLabel={strings.create}
      isPending={save.isPending}
      error={save.error}
      onSubmit={values => save.mutate(values)}
      onCancel={onDone}
    />
  )
}
