-- Time at which a price in effect was ended; null for none. From then on its item has no price in this scope until another
-- one starts. Processes of the release before ignore it.
alter table prices add column effective_until timestamptz(3);
